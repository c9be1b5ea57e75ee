//! One request at a time over a store that does what it says: the model foretells every answer, for
//! any order of requests, any node, any skew, at any time, and through changes of the master key.
//!
//! What only the fraction of a second or the rounding of an hour decides is not asked: the model says
//! [`None`], and the transition is not played.

use edgepass::message::Request;
use proptest::{prelude::*, sample::select, strategy::Union};
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};
use serde_json::json;

use crate::{
    cases,
    client::{self, Granted, LAST_STAGE, Stage, settings, verdict},
    store::TRUTHFUL,
    world::{BEGIN, World},
};

prop_state_machine! {
    #![proptest_config(cases(10_000))]

    #[test]
    fn every_answer_is_the_one_foretold(sequential 1..40 => Played);
}

const NODES: usize = 3;
const APPS: [&str; 2] = ["one", "two"];
const PEOPLE: usize = 2;

const SECOND: u64 = 1000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

const GRACE: u64 = MINUTE;
const ACCESS_SECONDS: u64 = 600;
const LEEWAY_SECONDS: u64 = 60;
const SESSION_SECONDS: u64 = 90 * DAY / SECOND;
const IDLE: u64 = 30 * DAY;

/// What a client, an operator or time does.
#[derive(Clone, Debug)]
enum Transition {
    LogIn {
        node: usize,
        user: usize,
        device: Option<u8>,
        key: Option<u8>,
    },
    /// The code of a session once more.
    LogInAgain {
        node: usize,
        session: usize,
        device: Named,
        key: Option<u8>,
    },
    /// The token `back` steps before the newest.
    Refresh {
        node: usize,
        session: usize,
        back: u32,
        device: Named,
        app: Named,
    },
    Verify {
        node: usize,
        session: usize,
    },
    LogOut {
        node: usize,
        session: usize,
        by: By,
    },
    LogOutAll {
        node: usize,
        session: usize,
        by: By,
    },
    List {
        node: usize,
        session: usize,
    },
    Delete {
        node: usize,
        session: usize,
        target: usize,
    },
    RevokeSession {
        node: usize,
        session: usize,
    },
    RevokeUser {
        node: usize,
        session: usize,
    },
    Block {
        node: usize,
        session: usize,
    },
    Unblock {
        node: usize,
        session: usize,
    },
    Sweep {
        node: usize,
    },
    Pass {
        millis: u64,
    },
    /// The next stage of the change of keys on a node.
    Rotate {
        node: usize,
    },
}

/// How a request names what it may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    Right,
    Wrong,
    Not,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Access,
    /// The newest.
    Refresh,
}

/// All that decides an answer.
#[derive(Clone, Debug)]
struct Model {
    now: u64,
    skews: [i64; NODES],
    stages: [Stage; NODES],
    /// When every node had the newest key first.
    promoted: u64,
    users: [User; PEOPLE * APPS.len()],
    sessions: Vec<Session>,
    expected: Expected,
}

#[derive(Clone, Copy, Debug, Default)]
struct User {
    known: bool,
    blocked: bool,
}

#[derive(Clone, Debug)]
struct Session {
    user: usize,
    device: Option<u8>,
    key: Option<u8>,
    /// Which master key makes its refresh tokens.
    master: usize,
    created: u64,
    expires: u64,
    counter: u32,
    /// When the counter moved, by the clock of the node that moved it.
    moved: u64,
    ended: bool,
    access: Access,
}

/// The newest access token of a session.
#[derive(Clone, Copy, Debug)]
struct Access {
    master: usize,
    issued: u64,
    expires: u64,
}

/// An answer foretold.
#[derive(Clone, Debug, Default)]
struct Expected {
    /// Status and problem code; any of these.
    verdicts: Vec<(u16, &'static str)>,
    /// Of which session, and which refresh token, a success is.
    granted: Option<(usize, u32)>,
    /// Whether the user is said to be new.
    is_new: Option<bool>,
    /// Sessions that a list names, and those it does not.
    listed: Vec<usize>,
    unlisted: Vec<usize>,
}

impl From<(u16, &'static str)> for Expected {
    fn from(verdict: (u16, &'static str)) -> Self {
        Self { verdicts: vec![verdict], ..Self::default() }
    }
}

const NO_CONTENT: (u16, &str) = (204, "");
const CODE_USED: (u16, &str) = (401, "code_used");
const REFRESH_INVALID: (u16, &str) = (401, "refresh_invalid");
const TOKEN_INVALID: (u16, &str) = (401, "token_invalid");

impl Model {
    /// Plays a transition and foretells its answer; [`None`] where the model does not decide.
    fn play(&mut self, transition: &Transition) -> Option<Expected> {
        match *transition {
            Transition::LogIn { node, user, device, key } => Some(self.log_in(node, user, device, key)),
            Transition::LogInAgain { node, session, device, key } => self.log_in_again(node, session, device, key),
            Transition::Refresh { node, session, back, device, app } => self.refresh(node, session, back, device, app),
            Transition::Verify { node, session } => {
                let session = self.at(session)?;
                Some(if self.verifies(node, session) { (200, "") } else { TOKEN_INVALID }.into())
            }
            Transition::LogOut { node, session, by } => {
                let session = self.at(session)?;
                if let Some(refused) = self.unusable(node, session, by) {
                    return Some(refused.into());
                }
                self.sessions[session].ended = true;
                Some(NO_CONTENT.into())
            }
            Transition::LogOutAll { node, session, by } => {
                let session = self.at(session)?;
                if let Some(refused) = self.unusable(node, session, by) {
                    return Some(refused.into());
                }
                if self.is_idle(node, session)? {
                    return None;
                }
                if self.is_live(node, session) {
                    self.end_all(self.sessions[session].user);
                }
                Some(NO_CONTENT.into())
            }
            Transition::List { node, session } => self.list(node, session),
            Transition::Delete { node, session, target } => self.delete(node, session, target),
            Transition::RevokeSession { session, .. } => {
                let session = self.at(session)?;
                self.sessions[session].ended = true;
                Some(NO_CONTENT.into())
            }
            Transition::RevokeUser { session, .. } => {
                let session = self.at(session)?;
                self.end_all(self.sessions[session].user);
                Some(NO_CONTENT.into())
            }
            Transition::Block { session, .. } => {
                let user = self.sessions[self.at(session)?].user;
                self.users[user].blocked = true;
                self.end_all(user);
                Some(NO_CONTENT.into())
            }
            Transition::Unblock { session, .. } => {
                let user = self.sessions[self.at(session)?].user;
                self.users[user].blocked = false;
                Some(NO_CONTENT.into())
            }
            Transition::Sweep { .. } => Some((200, "").into()),
            Transition::Pass { millis } => {
                self.now += millis;
                Some(Expected::default())
            }
            Transition::Rotate { node } => self.rotate(node),
        }
    }

    fn log_in(&mut self, node: usize, user: usize, device: Option<u8>, key: Option<u8>) -> Expected {
        let User { known, blocked } = self.users[user];
        if blocked {
            return (403, "user_blocked").into();
        }
        self.users[user].known = true;
        let created = self.seconds(node);
        let master = active(self.stages[node]);
        let access = Access { master, issued: created, expires: created + ACCESS_SECONDS };
        let expires = created + SESSION_SECONDS;
        let moved = self.clock(node);
        self.sessions.push(Session {
            user,
            device,
            key,
            master,
            created,
            expires,
            counter: 0,
            moved,
            ended: false,
            access,
        });
        Expected {
            verdicts: vec![(200, "")],
            granted: Some((self.sessions.len() - 1, 0)),
            is_new: Some(!known),
            ..Expected::default()
        }
    }

    fn log_in_again(&mut self, node: usize, session: usize, device: Named, key: Option<u8>) -> Option<Expected> {
        let at = self.at(session)?;
        let session = &self.sessions[at];
        if key.is_none() || session.key != key || !self.is_live(node, at) || !self.holds(node, session.master) {
            return Some(CODE_USED.into());
        }
        let age = self.clock(node).checked_sub(session.created * SECOND)?;
        if age.abs_diff(MINUTE) < 2 * SECOND || session.counter > 0 && device != Named::Right {
            return None;
        }
        if age > MINUTE || session.counter > 0 {
            return if device == Named::Right { Some(CODE_USED.into()) } else { None };
        }
        if device != Named::Right && (session.device.is_some() || device == Named::Wrong) {
            return Some((422, "idempotency_mismatch").into());
        }
        self.grant_access(node, at);
        Some(Expected { verdicts: vec![(200, "")], granted: Some((at, 0)), ..Expected::default() })
    }

    fn refresh(&mut self, node: usize, session: usize, back: u32, device: Named, app: Named) -> Option<Expected> {
        let at = self.at(session)?;
        let idle = self.is_idle(node, at)?;
        let now = self.clock(node);
        let session = &self.sessions[at];
        let presented = session.counter.saturating_sub(back);
        if !self.holds(node, session.master) || !self.is_live(node, at) || idle || app == Named::Wrong {
            return Some(REFRESH_INVALID.into());
        }
        let age = now.saturating_sub(session.moved);
        let behind = session.counter - presented;
        if behind == 1 && age.abs_diff(GRACE) < 2 * SECOND {
            return None;
        }
        let right_device = match device {
            Named::Right => true,
            // Of a session that named none, none is asked for: whatever is said then says nothing.
            Named::Wrong if session.device.is_none() => return None,
            Named::Not => session.device.is_none(),
            Named::Wrong => false,
        };
        if behind >= 2 || behind == 1 && age > GRACE {
            self.sessions[at].ended = true;
            return Some(REFRESH_INVALID.into());
        }
        if !right_device {
            return Some((401, "device_mismatch").into());
        }
        if behind == 0 {
            self.sessions[at].counter = presented + 1;
            self.sessions[at].moved = now;
        }
        self.grant_access(node, at);
        Some(Expected { verdicts: vec![(200, "")], granted: Some((at, presented + 1)), ..Expected::default() })
    }

    fn list(&self, node: usize, session: usize) -> Option<Expected> {
        let at = self.at(session)?;
        if !self.verifies(node, at) {
            return Some(TOKEN_INVALID.into());
        }
        let user = self.sessions[at].user;
        let mut expected = Expected::from((200, ""));
        for (other, session) in self.sessions.iter().enumerate() {
            if session.user != user || session.ended {
                expected.unlisted.push(other);
            } else if self.is_live(node, other) && self.is_idle(node, other) == Some(false) {
                expected.listed.push(other);
            }
        }
        Some(expected)
    }

    fn delete(&mut self, node: usize, session: usize, target: usize) -> Option<Expected> {
        let (at, target) = (self.at(session)?, self.at(target)?);
        if !self.verifies(node, at) {
            return Some(TOKEN_INVALID.into());
        }
        if self.sessions[at].user != self.sessions[target].user {
            return Some((404, "not_found").into());
        }
        if self.sessions[target].ended {
            return Some(Expected { verdicts: vec![NO_CONTENT, (404, "not_found")], ..Expected::default() });
        }
        if !self.is_live(node, target) || self.is_idle(node, target)? {
            return None;
        }
        self.sessions[target].ended = true;
        Some(NO_CONTENT.into())
    }

    /// Append, promote, drop: a node goes on when all have come as far, and a key is dropped when the
    /// last session it made is over on every clock.
    fn rotate(&mut self, node: usize) -> Option<Expected> {
        let stage = self.stages[node];
        let over = self.promoted + SESSION_SECONDS * SECOND + 10 * MINUTE;
        if stage == LAST_STAGE || self.stages.iter().any(|other| *other < stage) || stage % 3 == 2 && self.now < over {
            return None;
        }
        self.stages[node] += 1;
        self.promoted = self.now;
        Some(Expected::default())
    }

    /// Why a token does not even say who speaks.
    fn unusable(&self, node: usize, session: usize, by: By) -> Option<(u16, &'static str)> {
        let Session { access, master, .. } = &self.sessions[session];
        match by {
            By::Access if !self.holds(node, access.master) => Some(TOKEN_INVALID),
            By::Access if access.issued > self.seconds(node) + LEEWAY_SECONDS => Some(TOKEN_INVALID),
            By::Refresh if !self.holds(node, *master) => Some(REFRESH_INVALID),
            _ => None,
        }
    }

    fn verifies(&self, node: usize, session: usize) -> bool {
        let expires = self.sessions[session].access.expires;
        self.unusable(node, session, By::Access).is_none()
            && self.seconds(node) < expires
            && self.is_live(node, session)
    }

    fn is_live(&self, node: usize, session: usize) -> bool {
        let session = &self.sessions[session];
        !session.ended && self.seconds(node) < session.expires
    }

    fn is_idle(&self, node: usize, session: usize) -> Option<bool> {
        let unseen = self.clock(node).saturating_sub(self.sessions[session].moved);
        (unseen.abs_diff(IDLE) > 2 * HOUR).then_some(unseen > IDLE)
    }

    fn end_all(&mut self, user: usize) {
        self.sessions.iter_mut().filter(|session| session.user == user).for_each(|session| session.ended = true);
    }

    fn grant_access(&mut self, node: usize, session: usize) {
        let issued = self.seconds(node);
        let expires = (issued + ACCESS_SECONDS).min(self.sessions[session].expires);
        self.sessions[session].access = Access { master: active(self.stages[node]), issued, expires };
    }

    fn holds(&self, node: usize, master: usize) -> bool {
        let stage = self.stages[node];
        master == stage / 3 || !stage.is_multiple_of(3) && master == stage / 3 + 1
    }

    fn clock(&self, node: usize) -> u64 {
        self.now.saturating_add_signed(self.skews[node])
    }

    fn seconds(&self, node: usize) -> u64 {
        self.clock(node) / SECOND
    }

    fn at(&self, session: usize) -> Option<usize> {
        session.checked_rem(self.sessions.len())
    }
}

/// Which master key makes what is new.
fn active(stage: Stage) -> usize {
    stage / 3 + usize::from(stage % 3 == 2)
}

impl ReferenceStateMachine for Model {
    type State = Self;
    type Transition = Transition;

    fn init_state() -> BoxedStrategy<Self> {
        let skew = || select(vec![0, 20_000, -20_000, 300_000, -300_000]);
        let begin = |skews| Self {
            now: BEGIN,
            skews,
            stages: [0; NODES],
            promoted: BEGIN,
            users: Default::default(),
            sessions: Vec::new(),
            expected: Expected::default(),
        };
        [skew(), skew(), skew()].prop_map(begin).boxed()
    }

    fn transitions(state: &Self) -> BoxedStrategy<Transition> {
        let node = 0..NODES;
        let key = || prop::option::of(0..2_u8);
        let named = || select(vec![Named::Right, Named::Right, Named::Right, Named::Right, Named::Wrong, Named::Not]);
        let time = select(vec![SECOND, 20 * SECOND, 45 * SECOND, 3 * MINUTE, 9 * MINUTE, HOUR, 13 * HOUR, 12 * DAY]);
        let log_in = (node.clone(), 0..PEOPLE * APPS.len(), prop::option::of(0..2_u8), key())
            .prop_map(|(node, user, device, key)| Transition::LogIn { node, user, device, key });
        let mut all = vec![
            (4, log_in.boxed()),
            (4, time.prop_map(|millis| Transition::Pass { millis }).boxed()),
            (1, select(vec![31 * DAY, 61 * DAY]).prop_map(|millis| Transition::Pass { millis }).boxed()),
            (2, node.clone().prop_map(|node| Transition::Rotate { node }).boxed()),
        ];
        if !state.sessions.is_empty() {
            let one = (node.clone(), 0..state.sessions.len());
            let by = select(vec![By::Access, By::Refresh]);
            let each = |weight, to: fn((usize, usize)) -> Transition| (weight, one.clone().prop_map(to).boxed());
            let again = (one.clone(), named(), key());
            let again =
                again.prop_map(|((node, session), device, key)| Transition::LogInAgain { node, session, device, key });
            let back = select(vec![0, 0, 0, 0, 0, 1, 1, 2, 3]);
            let refresh = (one.clone(), back, named(), named()).prop_map(|((node, session), back, device, app)| {
                Transition::Refresh { node, session, back, device, app }
            });
            let log_out =
                (one.clone(), by.clone()).prop_map(|((node, session), by)| Transition::LogOut { node, session, by });
            let log_out_all =
                (one.clone(), by).prop_map(|((node, session), by)| Transition::LogOutAll { node, session, by });
            let delete = (one.clone(), 0..state.sessions.len())
                .prop_map(|((node, session), target)| Transition::Delete { node, session, target });
            all.extend([
                (3, again.boxed()),
                (14, refresh.boxed()),
                (1, log_out.boxed()),
                (1, log_out_all.boxed()),
                (1, delete.boxed()),
                each(6, |(node, session)| Transition::Verify { node, session }),
                each(2, |(node, session)| Transition::List { node, session }),
                each(1, |(node, session)| Transition::RevokeSession { node, session }),
                each(1, |(node, session)| Transition::RevokeUser { node, session }),
                each(1, |(node, session)| Transition::Block { node, session }),
                each(1, |(node, session)| Transition::Unblock { node, session }),
                each(1, |(node, _)| Transition::Sweep { node }),
            ]);
        }
        Union::new_weighted(all).boxed()
    }

    fn preconditions(state: &Self, transition: &Transition) -> bool {
        state.clone().play(transition).is_some()
    }

    fn apply(mut state: Self, transition: &Transition) -> Self {
        state.expected = state.play(transition).unwrap_or_default();
        state
    }
}

/// The service, and what its clients hold.
struct Played {
    world: World,
    clients: Vec<Client>,
    logins: usize,
}

struct Client {
    code: String,
    newest: Granted,
    /// Every refresh token, by its number.
    refresh: Vec<String>,
    device: Option<u8>,
    user: usize,
}

impl Played {
    fn request(&mut self, transition: &Transition) -> Option<(usize, Request)> {
        let client = |session: usize| &self.clients[session % self.clients.len()];
        let device = |name: u8| format!("device-{name}");
        let key = |name: u8| format!("idempotency-key-{name}");
        Some(match *transition {
            Transition::LogIn { node, user, device: named, key: given } => {
                self.logins += 1;
                let code = code(user, self.logins);
                let (named, given) = (named.map(device), given.map(key));
                (node, client::log_in(app(user), &code, named.as_deref(), given.as_deref()))
            }
            Transition::LogInAgain { node, session, device: named, key: given } => {
                let client = client(session);
                let (named, given) = (client.device(named), given.map(key));
                (node, client::log_in(app(client.user), &client.code, named.as_deref(), given.as_deref()))
            }
            Transition::Refresh { node, session, back, device, app: named } => {
                let client = client(session);
                let token = &client.refresh[client.refresh.len().saturating_sub(1 + back as usize)];
                let other = APPS.iter().find(|other| **other != app(client.user)).copied();
                let named = match named {
                    Named::Right => Some(app(client.user)),
                    Named::Wrong => other,
                    Named::Not => None,
                };
                (node, client::refresh(token, client.device(device).as_deref(), named))
            }
            Transition::Verify { node, session } => {
                (node, client::with_access("GET", "/api/verify/x", &client(session).newest.access))
            }
            Transition::LogOut { node, session, by } => (node, client(session).speaks("/api/logout", by)),
            Transition::LogOutAll { node, session, by } => (node, client(session).speaks("/api/logout-all", by)),
            Transition::List { node, session } => {
                (node, client::with_access("GET", "/api/sessions", &client(session).newest.access))
            }
            Transition::Delete { node, session, target } => {
                let path = format!("/api/sessions/{}", client(target).newest.sid);
                (node, client::with_access("DELETE", &path, &client(session).newest.access))
            }
            Transition::RevokeSession { node, session } => {
                (node, client::operator("/internal/revoke", &json!({"session_id": client(session).newest.sid})))
            }
            Transition::RevokeUser { node, session } => (node, client(session).judged("/internal/revoke")),
            Transition::Block { node, session } => (node, client(session).judged("/internal/block")),
            Transition::Unblock { node, session } => (node, client(session).judged("/internal/unblock")),
            Transition::Sweep { node } => (node, client::operator("/internal/sweep", &json!({}))),
            Transition::Pass { .. } | Transition::Rotate { .. } => return None,
        })
    }

    fn granted(&mut self, granted: Granted, session: usize, number: u32, transition: &Transition) {
        if let Transition::LogIn { user, device, .. } = *transition
            && session == self.clients.len()
        {
            let refresh = vec![granted.refresh.clone()];
            assert!(self.clients.iter().all(|client| client.newest.sid != granted.sid), "a session of its own");
            self.clients.push(Client { code: code(user, self.logins), newest: granted, refresh, device, user });
            return;
        }
        let client = &mut self.clients[session];
        let same =
            |g: &Granted| (g.sid.clone(), g.user.clone(), g.app.clone(), g.created_at.clone(), g.expires_at.clone());
        assert_eq!(same(&granted), same(&client.newest), "what a session is never changes");
        match client.refresh.get(number as usize) {
            Some(issued) => assert_eq!(*issued, granted.refresh, "one successor value"),
            None => client.refresh.push(granted.refresh.clone()),
        }
        assert_eq!(client.refresh[number as usize], granted.refresh, "the token after the one presented");
        client.newest = granted;
    }
}

impl Client {
    fn device(&self, named: Named) -> Option<String> {
        match (named, self.device) {
            (Named::Right, device) => device.map(|name| format!("device-{name}")),
            (Named::Wrong, _) => Some("another-device".to_owned()),
            (Named::Not, _) => None,
        }
    }

    fn speaks(&self, target: &str, by: By) -> Request {
        match by {
            By::Access => client::with_access("POST", target, &self.newest.access),
            By::Refresh => client::with_refresh(target, self.refresh.last().expect("the first at least")),
        }
    }

    fn judged(&self, target: &str) -> Request {
        client::operator(target, &json!({"user_id": self.newest.user}))
    }
}

fn app(user: usize) -> &'static str {
    APPS[user % APPS.len()]
}

fn code(user: usize, login: usize) -> String {
    format!("person{}-{login}", user / APPS.len())
}

impl StateMachineTest for Played {
    type SystemUnderTest = Self;
    type Reference = Model;

    fn init_test(model: &Model) -> Self {
        let nodes: Vec<_> = model.skews.iter().map(|skew| (*skew, settings(0, &[]))).collect();
        Self { world: World::new(TRUTHFUL, &nodes), clients: Vec::new(), logins: 0 }
    }

    fn apply(mut played: Self, model: &Model, transition: Transition) -> Self {
        if let Transition::Rotate { node } = transition {
            played.world.reconfigure(node, &settings(model.stages[node], &[]));
        }
        // A request that waits moves the world's time, which is the model's to move.
        played.world.set_now(model.now);
        let Some((node, request)) = played.request(&transition) else { return played };
        let response = played.world.send(node, request);
        let (status, problem) = verdict(&response);
        let Expected { verdicts, granted, is_new, listed, unlisted } = &model.expected;
        assert!(
            verdicts.contains(&(status, problem.as_str())),
            "{transition:?}: {status} {problem} instead of {verdicts:?}"
        );
        let body = client::body(&response);
        if let Some(is_new) = is_new {
            assert_eq!(body["user"]["is_new"], *is_new);
        }
        if let Some((session, number)) = *granted {
            played.granted(Granted::read(&response), session, number, &transition);
        }
        if let Transition::List { session, .. } = transition
            && status == 200
        {
            let sessions = body["sessions"].as_array().expect("a list");
            let shown = |session: &usize| sessions.iter().any(|s| s["id"] == played.clients[*session].newest.sid);
            assert!(listed.iter().all(shown), "every live session is listed: {body}");
            assert!(!unlisted.iter().any(shown), "no other is: {body}");
            let current: Vec<_> = sessions.iter().filter(|s| s["current"] == true).map(|s| &s["id"]).collect();
            assert_eq!(current, [&played.clients[session % played.clients.len()].newest.sid], "{body}");
        }
        played
    }
}
