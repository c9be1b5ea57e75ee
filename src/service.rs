//! The whole service behind one value: settings in, requests answered.

use std::{
    cell::{Cell, RefCell},
    fmt::Write as _,
    time::Duration,
};

use crate::{
    audit::{self, Event, Hashed, Note},
    clock::{Clock, Sleep, UnixMillis},
    config::{self, App, Problem as SettingProblem, Realm, Setup},
    host::{Host, Level},
    login::{Login, SubjectKeyError},
    message::{Head, Request, Response},
    platforms::{self, LoginCode, PlatformClient, PlatformError, PlatformSession},
    problem::{Code, Problem},
    random::Random,
    routes,
    session::{SessionId, Why},
    timing::Stages,
    token::keys::Subject,
    trace::Trace,
};

/// The login service on one host. One per instance; requests may be under way at once.
pub struct Service<H: Host> {
    host: H,
    login: Result<Login<H::Store, Ports<H>>, Vec<SettingProblem>>,
    shadow: Option<Login<H::Store, Ports<H>>>,
    settings: Vec<String>,
    problems_logged: Cell<bool>,
    /// When the store was last looked at, and what was found.
    pub(crate) store_seen: Cell<Option<(UnixMillis, Result<(), SubjectKeyError>)>>,
}

/// What a host may know before it sends the first request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// Version of this package.
    pub version: String,
    /// Commit the component was built from.
    pub commit: String,
    /// Time of that commit, RFC 3339.
    pub built: String,
    /// Lower-case names of the header fields the core reads.
    pub reads: Vec<String>,
    /// Names of the settings it knows, and of those that the `apps` it was given refers to. A host
    /// that can only ask by name asks again when more have become known.
    pub settings: Vec<String>,
    /// What is wrong with the settings; each names its setting and never a value.
    pub problems: Vec<String>,
}

/// One request while it is answered.
pub(crate) struct Exchange<'r> {
    pub(crate) request: &'r Request,
    pub(crate) trace: Trace,
    pub(crate) stages: Stages<'r>,
    realm: Cell<Realm>,
    note: RefCell<Note>,
}

/// A host as the ports that [`Login`] asks for.
pub(crate) struct Ports<H>(H);

impl<H: Host> Service<H> {
    /// Reads the settings once and derives the keys. A wrong setting is remembered, not refused:
    /// `/readyz`, [`Service::describe`] and the log name it.
    #[must_use]
    pub fn new(host: H, settings: &[(String, String)]) -> Self {
        let ports = || Ports(host.clone());
        let login = |setup| Login::new(host.store().clone(), ports(), Box::new(ports()), Box::new(ports()), setup);
        let setup = Setup::read(settings);
        let shadow = setup.as_ref().ok().and_then(|setup| setup.shadow(settings)).map(login);
        let login = setup.map(login);
        let mut known: Vec<String> = config::SETTINGS.iter().map(ToString::to_string).collect();
        known.extend(config::referenced(settings));
        Self { host, login, shadow, settings: known, problems_logged: Cell::new(false), store_seen: Cell::new(None) }
    }

    /// What this build reads, and what is wrong with the settings it was given.
    #[must_use]
    pub fn describe(&self) -> Description {
        Description {
            version: routes::VERSION.to_owned(),
            commit: routes::COMMIT.to_owned(),
            built: routes::BUILT.to_owned(),
            reads: routes::READS.iter().map(ToString::to_string).collect(),
            settings: self.settings.clone(),
            problems: self.problems().iter().map(ToString::to_string).collect(),
        }
    }

    /// Answers one request. Never panics, whatever the request holds.
    pub async fn handle(&self, request: Request) -> Response {
        let clock = self.host.clock();
        let begun = clock.tick_ns();
        let timed = self.login.as_ref().is_ok_and(|login| login.config().server_timing);
        let exchange = Exchange {
            trace: Trace::of(&request.head, self.host.random()),
            request: &request,
            stages: Stages::new(timed.then_some(clock)),
            realm: Cell::new(Realm::Live),
            note: RefCell::default(),
        };
        self.log_problems(&exchange.trace);

        let (route, mut response) = routes::answer(self, &exchange).await;
        // Tokens travel; a route whose answers may be kept says so itself.
        if response.head.get("cache-control").is_none() {
            response.head.push("cache-control", "no-store");
        }
        response.head.push("x-trace-id", &exchange.trace.id);
        response.head.push("traceparent", &exchange.trace.parent);
        if let Some(stages) = exchange.stages.header() {
            response.head.push("server-timing", &stages);
        }
        self.log_request(&exchange, route, response.status, begun);
        response
    }

    pub(crate) fn host(&self) -> &H {
        &self.host
    }

    pub(crate) fn problems(&self) -> &[SettingProblem] {
        self.login.as_ref().err().map_or(&[], Vec::as_slice)
    }

    /// The login service of this exchange's realm, or the answer for want of one.
    pub(crate) fn login(
        &self,
        exchange: &Exchange<'_>,
    ) -> Result<&Login<H::Store, impl PlatformClient + use<H>>, Problem> {
        let login = match exchange.realm.get() {
            Realm::Live => self.login.as_ref().ok(),
            Realm::Shadow => self.shadow.as_ref(),
        };
        login.ok_or_else(unconfigured)
    }

    /// The login service of users, whoever asks.
    pub(crate) fn live(&self) -> Result<&Login<H::Store, impl PlatformClient + use<H>>, Problem> {
        self.login.as_ref().map_err(|_| unconfigured())
    }

    /// Finds out whose traffic an exchange is, before anything is done for it.
    ///
    /// # Errors
    /// `load_token_invalid`.
    pub(crate) fn enter(&self, exchange: &Exchange<'_>) -> Result<(), Problem> {
        self.realm(&exchange.request.head).map(|realm| exchange.enter(realm))
    }

    /// Whether there is anybody who may operate the service. Where the settings are wrong, nobody knows.
    pub(crate) fn has_operators(&self) -> bool {
        self.login.as_ref().map_or(true, |login| !login.config().operator_tokens.is_empty())
    }

    /// Whose traffic a request is. A mark without its token is nobody's: taken for a user's, a load
    /// test would log in users; and anyone could have theirs kept out of sight.
    fn realm(&self, head: &Head) -> Result<Realm, Problem> {
        let Some(shadow) = self.login.as_ref().ok().and_then(|login| login.config().shadow.as_ref()) else {
            return Ok(Realm::Live);
        };
        let refused = |reason: &'static str| {
            let detail = "x-env marks a load test, which needs x-edgepass-load-token.";
            Problem::new(Code::LoadTokenInvalid, detail).because(reason)
        };
        let is_marked = match head.only("x-env") {
            Ok(mark) => mark == Some(shadow.mark.as_bytes()),
            Err(_) => return Err(refused("shadow.repeated")),
        };
        if !is_marked {
            return Ok(Realm::Live);
        }
        let token = head.only("x-edgepass-load-token").ok().flatten();
        let token = token.and_then(|token| std::str::from_utf8(token).ok()).unwrap_or_default();
        if shadow.token.is(token) { Ok(Realm::Shadow) } else { Err(refused("shadow.token")) }
    }

    /// Logs a security event, before the answer leaves.
    pub(crate) fn event(&self, event: Event, exchange: &Exchange<'_>) {
        self.log_event(event, exchange, &exchange.note.borrow());
    }

    /// Logs that another session than the request's own was ended.
    pub(crate) fn ended_event(&self, sid: SessionId, why: Why, exchange: &Exchange<'_>) {
        let note = Note { sid: Some(sid), reason: Some(why.name().into()), ..exchange.note.borrow().clone() };
        self.log_event(Event::SessionRevoke, exchange, &note);
    }

    fn log_event(&self, event: Event, exchange: &Exchange<'_>, note: &Note) {
        let now = self.host.clock().now();
        self.host.log(event.level(), audit::line(now, event.level(), event.name(), &exchange.trace, self.hashed(note)));
    }

    /// Names wrong settings in the log, at the first request: whoever only asks for a description
    /// may have given no settings yet.
    fn log_problems(&self, trace: &Trace) {
        if self.problems().is_empty() || self.problems_logged.replace(true) {
            return;
        }
        let problems = self.problems().iter().fold(String::new(), |mut all, problem| {
            let _ = write!(all, "{}{problem}", if all.is_empty() { "" } else { "; " });
            all
        });
        let note = Note { reason: Some(problems.into()), ..Note::default() };
        let now = self.host.clock().now();
        self.host.log(Level::Error, audit::line(now, Level::Error, "config.problem", trace, &note));
    }

    fn hashed<'n>(&self, note: &'n Note) -> Hashed<'n> {
        let hash = |id: Option<&[u8; 16]>| Some(self.login.as_ref().ok()?.log_hash(id?));
        Hashed {
            sid_hash: hash(note.sid.as_ref().map(SessionId::bytes)),
            uid_hash: hash(note.subject.as_ref().map(Subject::bytes)),
            note,
        }
    }

    fn log_request(&self, exchange: &Exchange<'_>, route: &'static str, status: u16, begun: u64) {
        let sample = self.login.as_ref().map_or(1.0, |login| login.config().log_sample);
        let level = match status {
            500.. => Level::Error,
            400.. => Level::Warn,
            _ if exchange.trace.sampled(sample) => Level::Info,
            _ => return,
        };
        let note = exchange.note.borrow();
        let clock = self.host.clock();
        let micros = clock.tick_ns().saturating_sub(begun) / 1000;
        let access = audit::Access {
            method: routes::known_method(&exchange.request.method),
            route,
            status,
            duration_ms: f64::from(u32::try_from(micros).unwrap_or(u32::MAX)) / 1000.0,
            sample,
            known: self.hashed(&note),
        };
        let line = audit::line(clock.now(), level, "request", &exchange.trace, access);
        let host = self.host.clone();
        self.host.later(async move { host.log(level, line) });
    }
}

fn unconfigured() -> Problem {
    Problem::new(Code::Config, "A setting is wrong or missing; /readyz names it.").because("config.settings")
}

impl Exchange<'_> {
    fn enter(&self, realm: Realm) {
        self.realm.set(realm);
        self.note(|note| note.is_shadow = (realm == Realm::Shadow).then_some(true));
    }

    /// Adds to what the log will say.
    pub(crate) fn note(&self, add: impl FnOnce(&mut Note)) {
        add(&mut self.note.borrow_mut());
    }

    pub(crate) fn note_problem(&self, problem: &Problem) {
        self.note(|note| {
            note.code = Some(problem.name());
            note.reason.clone_from(&problem.reason);
            note.platform_code = problem.platform_code;
            note.platform_request_id.clone_from(&problem.platform_request_id);
        });
    }
}

impl<H: Host> Clock for Ports<H> {
    fn now(&self) -> UnixMillis {
        self.0.clock().now()
    }

    fn tick_ns(&self) -> u64 {
        self.0.clock().tick_ns()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        self.0.clock().sleep(duration)
    }
}

impl<H: Host> Random for Ports<H> {
    fn fill(&self, buffer: &mut [u8]) {
        self.0.random().fill(buffer);
    }
}

impl<H: Host> PlatformClient for Ports<H> {
    async fn exchange(
        &self,
        app: &App,
        code: &LoginCode,
        exclusive: Option<[u8; 32]>,
    ) -> Result<PlatformSession, PlatformError> {
        platforms::exchange(self.0.http(), app, code, exclusive).await
    }
}
