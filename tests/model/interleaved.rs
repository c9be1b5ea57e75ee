//! Requests at once, on nodes whose clocks differ, over a store that fails in chosen ways. What is
//! done when is the test's choice, operation by operation; a [`Ledger`] knows what was promised to
//! whom and holds every answer against it.
//!
//! What holds on every store: one successor value per refresh token; session, user, app and ends
//! never change; a code makes one session; nothing of one user touches another. What else holds
//! depends on what the store may do, and [`Regime`] says it.

use std::collections::BTreeMap;

use edgepass::{message::Response, session::Epoch, store::envelope};
use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::json;

use crate::{
    cases,
    client::{self, Granted, settings, verdict},
    store::{Faults, TRUTHFUL},
    world::{TaskId, World},
};

/// A kind of store, and what holds on it.
#[derive(Clone, Copy)]
#[allow(clippy::struct_excessive_bools, reason = "a row of a table: each says whether one thing holds")]
struct Regime {
    faults: Faults,
    settings: &'static [(&'static str, &'static str)],
    /// Clocks may differ by five minutes either way.
    skewed: bool,
    /// A token two steps behind, or one behind after the grace time, is always found out. Where
    /// nothing compares, only while no two refreshes of the session overlap.
    finds_reuse: Finds,
    /// Nothing ends up as [`UNAVAILABLE`].
    answers: bool,
    /// A user's epoch never goes back.
    monotone: bool,
    /// A session whose refresh was refused is over. Not so where a tombstone that was seen may be
    /// overlooked the next time, while the end it belongs to is still under way or was cut off.
    refused_is_over: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Finds {
    Always,
    UnlessOverlapping,
    InTheEnd,
}

const EVERYTHING: &[&str] = &["s", "x", "g", "e", "l", "o"];

const LINEARIZABLE: Regime = Regime {
    faults: TRUTHFUL,
    settings: &[],
    skewed: true,
    finds_reuse: Finds::Always,
    answers: true,
    monotone: true,
    refused_is_over: true,
};

/// Spin's stores: no comparison, so a late write takes a counter back a step.
const WITHOUT_COMPARISON: Regime = Regime {
    faults: Faults { compares: false, ..TRUTHFUL },
    finds_reuse: Finds::UnlessOverlapping,
    monotone: false,
    ..LINEARIZABLE
};

const COUNTER_UNRELIABLE: Regime = Regime {
    faults: Faults { compares: false, stale: &["g"], unsafe_puts: &["g"], ..TRUTHFUL },
    finds_reuse: Finds::InTheEnd,
    monotone: false,
    ..LINEARIZABLE
};

const TOMBSTONES_UNRELIABLE: Regime = Regime {
    faults: Faults { stale: &["x"], unsafe_puts: &["x"], ..TRUTHFUL },
    refused_is_over: false,
    ..LINEARIZABLE
};

const DELETIONS_UNRELIABLE: Regime = Regime { faults: Faults { unsafe_deletes: &["s"], ..TRUTHFUL }, ..LINEARIZABLE };

const LISTS_UNRELIABLE: Regime =
    Regime { faults: Faults { stale: &["l"], unsafe_puts: &["l"], ..WITHOUT_COMPARISON.faults }, ..WITHOUT_COMPARISON };

const FAILING: Regime = Regime { faults: Faults { failing: true, ..TRUTHFUL }, answers: false, ..LINEARIZABLE };

const LAG: u64 = 5000;

const LAGGING: Regime = Regime {
    faults: Faults { stale: EVERYTHING, lag: LAG, ..TRUTHFUL },
    settings: &[("store_lag", "10s")],
    // How old a token is, is measured with two clocks.
    skewed: false,
    finds_reuse: Finds::InTheEnd,
    answers: false,
    monotone: false,
    refused_is_over: true,
};

const CASES: u32 = 2000;

proptest! {
    #![proptest_config(cases(CASES))]

    #[test]
    fn on_a_linearizable_store(played in played(&LINEARIZABLE)) {
        play(&LINEARIZABLE, played);
    }

    #[test]
    fn on_a_store_that_compares_nothing(played in played(&WITHOUT_COMPARISON)) {
        play(&WITHOUT_COMPARISON, played);
    }

    #[test]
    fn with_counters_lost_late_and_stale(played in played(&COUNTER_UNRELIABLE)) {
        play(&COUNTER_UNRELIABLE, played);
    }

    #[test]
    fn with_tombstones_lost_late_and_stale(played in played(&TOMBSTONES_UNRELIABLE)) {
        play(&TOMBSTONES_UNRELIABLE, played);
    }

    #[test]
    fn with_deletions_of_sessions_lost_and_late(played in played(&DELETIONS_UNRELIABLE)) {
        play(&DELETIONS_UNRELIABLE, played);
    }

    #[test]
    fn with_lists_of_sessions_lost_late_and_stale(played in played(&LISTS_UNRELIABLE)) {
        play(&LISTS_UNRELIABLE, played);
    }

    #[test]
    fn on_a_store_and_a_platform_that_fail(played in played(&FAILING)) {
        play(&FAILING, played);
    }

    #[test]
    fn on_a_store_that_lags_behind(played in played(&LAGGING)) {
        play(&LAGGING, played);
    }
}

const NODES: usize = 3;
const USERS: usize = 2;
const APP: &str = "one";
const GRACE: u64 = 60_000;
const SECOND: u64 = 1000;

/// One thing that happens. Numbers are taken modulo what there is.
#[derive(Clone, Debug)]
enum Action {
    /// A request is sent; its answer may be lost on the way.
    Send {
        node: usize,
        lost: bool,
        what: Send,
    },
    /// A waiting operation goes on; `roll` decides how.
    Step {
        pick: usize,
        roll: u8,
    },
    /// Everything goes on, in order and well.
    Settle,
    /// The node that answers a request dies.
    Kill {
        request: usize,
    },
    Pass {
        millis: u64,
    },
    /// The next stage of a rolling change of keys.
    Rotate {
        node: usize,
    },
}

#[derive(Clone, Debug)]
enum Send {
    LogIn {
        user: usize,
        key: Option<u8>,
    },
    LogInAgain {
        login: usize,
        key: Option<u8>,
    },
    /// The owner, with the newest token it has been given.
    Refresh {
        session: usize,
    },
    /// Anybody, with any token there ever was.
    Replay {
        session: usize,
        number: usize,
    },
    Verify {
        session: usize,
    },
    LogOut {
        session: usize,
    },
    LogOutAll {
        session: usize,
    },
    Delete {
        session: usize,
        target: usize,
    },
    RevokeSession {
        session: usize,
    },
    RevokeUser {
        session: usize,
    },
    Block {
        session: usize,
    },
    Unblock {
        session: usize,
    },
}

type Play = ([i64; NODES], Vec<Action>);

fn played(regime: &Regime) -> impl Strategy<Value = Play> + use<> {
    let skews = if regime.skewed { vec![0, 0, 20_000, 300_000, -300_000] } else { vec![0] };
    let skew = || select(skews.clone());
    ([skew(), skew(), skew()], vec(action(), 1..120))
}

fn action() -> impl Strategy<Value = Action> {
    let key = || prop::option::of(0..2_u8);
    let any = || 0..8_usize;
    let what = prop_oneof![
        8 => (0..USERS, key()).prop_map(|(user, key)| Send::LogIn { user, key }),
        4 => (any(), key()).prop_map(|(login, key)| Send::LogInAgain { login, key }),
        24 => any().prop_map(|session| Send::Refresh { session }),
        5 => (any(), any()).prop_map(|(session, number)| Send::Replay { session, number }),
        8 => any().prop_map(|session| Send::Verify { session }),
        2 => any().prop_map(|session| Send::LogOut { session }),
        2 => any().prop_map(|session| Send::LogOutAll { session }),
        2 => (any(), any()).prop_map(|(session, target)| Send::Delete { session, target }),
        1 => any().prop_map(|session| Send::RevokeSession { session }),
        1 => any().prop_map(|session| Send::RevokeUser { session }),
        1 => any().prop_map(|session| Send::Block { session }),
        1 => any().prop_map(|session| Send::Unblock { session }),
    ];
    prop_oneof![
        10 => (0..NODES, prop::bool::weighted(0.15), what).prop_map(|(node, lost, what)| Action::Send { node, lost, what }),
        // Often the oldest goes on, or requests would hardly ever end.
        14 => (prop_oneof![Just(0), 0..40_usize], prop::num::u8::ANY).prop_map(|(pick, roll)| Action::Step { pick, roll }),
        4 => Just(Action::Settle),
        1 => any().prop_map(|request| Action::Kill { request }),
        2 => select(vec![SECOND, 6 * SECOND, 20 * SECOND, 50 * SECOND, 70 * SECOND, 660 * SECOND])
            .prop_map(|millis| Action::Pass { millis }),
        1 => (0..NODES).prop_map(|node| Action::Rotate { node }),
    ]
}

fn play(regime: &Regime, (skews, actions): Play) {
    let nodes = skews.map(|skew| (skew, settings(0, regime.settings)));
    let mut ledger = Ledger::new(*regime, World::new(regime.faults, &nodes));
    for action in actions {
        ledger.act(action);
    }
    ledger.close();
}

/// What was sent, promised and answered.
struct Ledger {
    regime: Regime,
    world: World,
    stages: [usize; NODES],
    /// Counts beginnings and ends of requests: what ended before something began is below it.
    tick: u64,
    requests: BTreeMap<TaskId, Request>,
    logins: Vec<Login>,
    sessions: Vec<Session>,
    users: [User; USERS],
}

/// A request under way.
struct Request {
    node: usize,
    lost: bool,
    what: What,
    begun: u64,
    begun_at: u64,
    /// The node's clock then.
    begun_clock: u64,
}

enum What {
    LogIn {
        login: usize,
        key: Option<u8>,
    },
    Refresh {
        session: usize,
        number: usize,
        owner: bool,
        reuse: bool,
    },
    Verify {
        session: usize,
        valid: (u64, u64),
    },
    /// Ends one session.
    End {
        session: usize,
    },
    /// Ends all of a user. A client can do so while its own session lives, `live` says whether that
    /// was so when it asked; an operator always.
    EndAll {
        session: usize,
        by: By,
        live: bool,
    },
    Delete {
        target: usize,
        foreign: bool,
    },
    Unblock {
        user: usize,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Client,
    Operator,
    Block,
}

/// A code that was sent.
struct Login {
    user: usize,
    code: String,
    key: Option<u8>,
    /// How often.
    tries: u32,
    /// Which session it made.
    session: Option<usize>,
}

struct Session {
    user: usize,
    login: usize,
    first: Granted,
    /// Every refresh token that was ever issued, by its number.
    tokens: Vec<String>,
    /// The newest number that its owner was given.
    owned: Option<usize>,
    /// The newest access token anybody was given.
    access: Granted,
    /// When its login was answered.
    answered: u64,
    /// When an end of it was acknowledged: tick and true time.
    ended: Option<(u64, u64)>,
    /// How many ends of it have begun, done or not.
    ends_begun: u32,
    /// A token was, or may have been, presented out of turn.
    out_of_turn: bool,
    /// Whether its newest refresh was refused.
    refused: bool,
    overlapped: bool,
    uses: BTreeMap<usize, Uses>,
}

/// How a refresh token was used.
#[derive(Default)]
struct Uses {
    under_way: u32,
    /// By the clocks of the nodes: when the first use began, and when the last one ended.
    first: Option<u64>,
    last: u64,
    /// Whether a success was answered.
    answered: bool,
}

/// What was done to a user as a whole.
#[derive(Default)]
struct User {
    ends: Vec<Span>,
    blocks: Vec<Span>,
    unblocks: Vec<Span>,
}

struct Span {
    task: TaskId,
    begun: u64,
    begun_at: u64,
    ended: Option<(u64, u64)>,
    /// Whether it was acknowledged.
    done: bool,
}

impl Ledger {
    fn new(regime: Regime, world: World) -> Self {
        Self {
            regime,
            world,
            stages: [0; NODES],
            tick: 0,
            requests: BTreeMap::new(),
            logins: Vec::new(),
            sessions: Vec::new(),
            users: Default::default(),
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Send { node, lost, what } => self.send(node, lost, &what),
            Action::Step { pick, roll } => {
                if let Some((task, response)) = self.world.step(pick, roll) {
                    self.answered(task, &response);
                }
            }
            Action::Settle => self.settle(),
            Action::Kill { request } => {
                if let Some(task) = self.requests.keys().copied().nth(request % self.requests.len().max(1)) {
                    self.world.kill(task);
                    self.close_request(task, None);
                }
            }
            Action::Pass { millis } => self.world.advance(millis),
            Action::Rotate { node } => {
                // Two stages: dropping a key has to wait for the last session, which `exact` does.
                if self.stages[node] < 2 && self.stages.iter().all(|other| *other >= self.stages[node]) {
                    self.stages[node] += 1;
                    self.world.reconfigure(node, &settings(self.stages[node], self.regime.settings));
                }
            }
        }
    }

    fn settle(&mut self) {
        for (task, response) in self.world.settle() {
            self.answered(task, &response);
        }
    }

    /// At the end the store does as it says, and the rule finds every session in order.
    fn close(&mut self) {
        self.settle();
        self.world.advance(LAG + SECOND);
        for session in 0..self.sessions.len() {
            let node = session % NODES;
            if self.sessions[session].owned.is_none() {
                continue;
            }
            let newest = |ledger: &Self| ledger.sessions[session].owned.unwrap_or_default();
            let before = newest(self);
            for _ in 0..3 {
                self.send(node, false, &Send::Refresh { session });
                self.settle();
            }
            if newest(self) == before + 3 {
                self.send(node, false, &Send::Replay { session, number: before });
                self.settle();
                assert!(self.sessions[session].refused, "reuse ends the session");
            }
            self.send(node, false, &Send::Refresh { session });
            self.send(node, false, &Send::Verify { session });
            self.settle();
            assert!(newest(self) <= before + 3, "nothing is issued any more");
        }
        assert!(self.requests.is_empty(), "every request is answered");
        if self.regime.monotone && self.users.iter().all(|user| user.unblocks.is_empty()) {
            for history in self.world.shared.store.borrow().histories("e") {
                let epochs: Vec<Epoch> =
                    history.into_iter().flatten().map(|value| envelope::read_plain(value).expect("an epoch")).collect();
                assert!(epochs.is_sorted(), "epochs only grow: {epochs:?}");
            }
        }
    }

    fn send(&mut self, node: usize, lost: bool, what: &Send) {
        let Some((what, request)) = self.prepare(node, what) else { return };
        self.tick += 1;
        let (begun, begun_at, begun_clock) = (self.tick, self.world.now(), self.world.now_at(node));
        let (task, answer) = self.world.start(node, request);
        self.begin(task, &what, begun, begun_clock);
        self.requests.insert(task, Request { node, lost, what, begun, begun_at, begun_clock });
        if let Some(response) = answer {
            self.answered(task, &response);
        }
    }

    /// The request, and what it is about.
    fn prepare(&mut self, node: usize, what: &Send) -> Option<(What, edgepass::message::Request)> {
        let at = |session: usize| session.checked_rem(self.sessions.len());
        Some(match *what {
            Send::LogIn { user, key } => {
                let code = format!("user{user}-{}", self.logins.len());
                let request = client::log_in(APP, &code, None, key.map(name).as_deref());
                self.logins.push(Login { user, code, key, tries: 1, session: None });
                (What::LogIn { login: self.logins.len() - 1, key }, request)
            }
            Send::LogInAgain { login, key } => {
                let login = login.checked_rem(self.logins.len())?;
                self.logins[login].tries += 1;
                (
                    What::LogIn { login, key },
                    client::log_in(APP, &self.logins[login].code, None, key.map(name).as_deref()),
                )
            }
            Send::Refresh { session } => {
                let session = at(session)?;
                self.refresh(node, session, self.sessions[session].owned?, true)
            }
            Send::Replay { session, number } => {
                let session = at(session)?;
                self.refresh(node, session, number % self.sessions[session].tokens.len(), false)
            }
            Send::Verify { session } => {
                let session = at(session)?;
                let access = &self.sessions[session].access;
                (
                    What::Verify { session, valid: access.valid },
                    client::with_access("GET", "/api/verify/x", &access.access),
                )
            }
            Send::LogOut { session } => {
                let session = at(session)?;
                let request = client::with_refresh("/api/logout", self.sessions[session].tokens.last()?);
                (What::End { session }, request)
            }
            Send::LogOutAll { session } => {
                let session = at(session)?;
                let request = client::with_refresh("/api/logout-all", self.sessions[session].tokens.last()?);
                (What::EndAll { session, by: By::Client, live: self.sessions[session].is_promised() }, request)
            }
            Send::Delete { session, target } => {
                let (session, target) = (at(session)?, at(target)?);
                let path = format!("/api/sessions/{}", self.sessions[target].first.sid);
                let foreign = self.sessions[session].user != self.sessions[target].user;
                let request = client::with_access("DELETE", &path, &self.sessions[session].access.access);
                (What::Delete { target, foreign }, request)
            }
            Send::RevokeSession { session } => {
                let session = at(session)?;
                let body = json!({"session_id": self.sessions[session].first.sid});
                (What::End { session }, client::operator("/internal/revoke", &body))
            }
            Send::RevokeUser { session } => self.judge(at(session)?, "/internal/revoke", By::Operator),
            Send::Block { session } => self.judge(at(session)?, "/internal/block", By::Block),
            Send::Unblock { session } => {
                let session = &self.sessions[at(session)?];
                let body = json!({"user_id": session.first.user});
                (What::Unblock { user: session.user }, client::operator("/internal/unblock", &body))
            }
        })
    }

    fn judge(&self, session: usize, target: &str, by: By) -> (What, edgepass::message::Request) {
        let body = json!({"user_id": self.sessions[session].first.user});
        (What::EndAll { session, by, live: true }, client::operator(target, &body))
    }

    fn refresh(&self, node: usize, at: usize, number: usize, owner: bool) -> (What, edgepass::message::Request) {
        let session = &self.sessions[at];
        let token = &session.tokens[number];
        let finds = match self.regime.finds_reuse {
            Finds::Always => true,
            Finds::UnlessOverlapping => !session.overlapped && session.uses.values().all(|uses| uses.under_way == 0),
            Finds::InTheEnd => false,
        };
        let used = |number| session.uses.get(&number);
        let successor_used = used(number + 1).is_some_and(|uses| uses.answered);
        let too_late = used(number).is_some_and(|uses| {
            let age = self.world.now_at(node).saturating_sub(uses.last);
            uses.answered && uses.under_way == 0 && age > GRACE + SECOND
        });
        let reuse = finds && (successor_used || too_late);
        (What::Refresh { session: at, number, owner, reuse }, client::refresh(token, None, None))
    }

    /// What is promised no more when a request begins.
    fn begin(&mut self, task: TaskId, what: &What, begun: u64, clock: u64) {
        let begun_at = self.world.now();
        match *what {
            What::Refresh { session, number, owner, .. } => {
                let session = &mut self.sessions[session];
                let before = session.uses.range(..number).any(|(_, uses)| uses.under_way > 0);
                session.overlapped |= session.uses.values().any(|uses| uses.under_way > 0);
                // Out of turn is also a token two rotations after one that is still on its way.
                session.out_of_turn |= !owner || before;
                let uses = session.uses.entry(number).or_default();
                uses.under_way += 1;
                uses.first = Some(uses.first.map_or(clock, |first| first.min(clock)));
            }
            What::End { session } => self.sessions[session].end_begins(),
            What::Delete { target, foreign, .. } => {
                if !foreign {
                    self.sessions[target].end_begins();
                }
            }
            What::EndAll { session, by, .. } => {
                let user = self.sessions[session].user;
                let span = || Span { task, begun, begun_at, ended: None, done: false };
                self.users[user].ends.push(span());
                if by == By::Block {
                    self.users[user].blocks.push(span());
                }
                self.sessions.iter_mut().filter(|session| session.user == user).for_each(Session::end_begins);
            }
            What::Unblock { user } => {
                self.users[user].unblocks.push(Span { task, begun, begun_at, ended: None, done: false });
            }
            What::LogIn { .. } | What::Verify { .. } => {}
        }
    }

    fn answered(&mut self, task: TaskId, response: &Response) {
        self.close_request(task, Some(response));
    }

    /// Holds an answer against what was promised; [`None`] when there will be none.
    fn close_request(&mut self, task: TaskId, response: Option<&Response>) {
        self.tick += 1;
        let Some(request) = self.requests.remove(&task) else { return };
        let clock = self.world.now_at(request.node);
        self.doubt_late_refreshes();
        let verdict = response.map(verdict);
        if let What::Refresh { session, number, .. } = request.what {
            let uses = self.sessions[session].uses.entry(number).or_default();
            uses.under_way -= 1;
            uses.last = uses.last.max(clock);
        }
        let now = (self.tick, self.world.now());
        let done = verdict.as_ref().is_some_and(|(status, _)| *status < 300);
        for user in &mut self.users {
            let spans = [&mut user.ends, &mut user.blocks, &mut user.unblocks].into_iter().flatten();
            for span in spans.filter(|span| span.task == task) {
                span.ended = Some(now);
                span.done = done;
            }
        }
        let (Some(response), Some((status, problem))) = (response, verdict) else { return };
        let answer = (status, problem.as_str());
        if status == 503 || status == 504 || status == 502 {
            assert!(!self.regime.answers, "the store did nothing wrong: {answer:?}");
            return;
        }
        match request.what {
            What::LogIn { login, key } => self.logged_in(&request, login, key, answer, response),
            What::Refresh { .. } => self.refreshed(&request, answer, response),
            What::Verify { session, valid } => {
                let session = &self.sessions[session];
                if status == 200 {
                    session.counts(&request, self.regime.faults.lag);
                } else {
                    let in_time = valid.0 <= request.begun_clock / SECOND + 60 && clock / SECOND < valid.1;
                    assert!(!session.is_promised() || !in_time, "a good access token is taken: {answer:?}");
                }
            }
            What::End { session } => {
                assert_eq!(status, 204, "{problem}");
                self.sessions[session].ended.get_or_insert(now);
            }
            What::Delete { target, foreign, .. } => {
                assert!(!foreign || status == 404 || status == 401, "somebody else's session: {answer:?}");
                if status == 204 {
                    self.sessions[target].ended.get_or_insert(now);
                }
            }
            What::EndAll { session, by, live } => {
                assert_eq!(status, 204, "{problem}");
                let Session { user, ends_begun, out_of_turn, .. } = self.sessions[session];
                // Where nothing compares, two of these at once may take the epoch back, below that of a
                // session made between them; and of two logins at once the list may name one.
                let certain = self.regime.faults.compares || self.users[user].is_calm();
                // With a token of a session that is over nothing is ended.
                if certain && (by != By::Client || live && ends_begun == 1 && !out_of_turn) {
                    let before = |session: &&mut Session| session.user == user && session.answered < request.begun;
                    self.sessions.iter_mut().filter(before).for_each(|session| {
                        session.ended.get_or_insert(now);
                    });
                }
            }
            What::Unblock { .. } => assert_eq!(status, 204, "{problem}"),
        }
    }

    /// A refresh under way that has become too late for the grace time may end its session any time.
    fn doubt_late_refreshes(&mut self) {
        for Request { node, what, .. } in self.requests.values() {
            if let What::Refresh { session, number, .. } = *what {
                let session = &mut self.sessions[session];
                let first = session.uses.get(&number).and_then(|uses| uses.first);
                session.out_of_turn |=
                    first.is_some_and(|first| self.world.now_at(*node).saturating_sub(first) > GRACE);
            }
        }
    }

    fn logged_in(
        &mut self,
        request: &Request,
        login: usize,
        key: Option<u8>,
        answer: (u16, &str),
        response: &Response,
    ) {
        let user = self.logins[login].user;
        if answer.0 != 200 {
            match answer {
                (403, "user_blocked") => assert!(self.may_be_blocked(user, request), "nobody blocked the user"),
                (401, "code_used") => assert!(self.logins[login].tries > 1, "a fresh code is taken"),
                other => panic!("a login is not answered with {other:?}"),
            }
            return;
        }
        assert!(!self.must_be_blocked(user, request), "a blocked user does not log in");
        let granted = Granted::read(response);
        if let Some(at) = self.logins[login].session {
            let session = &mut self.sessions[at];
            assert!(key.is_some() && key == self.logins[login].key, "a code makes one session");
            assert_eq!(granted.refresh, session.tokens[0], "a repeated login gives the same token");
            session.is_same(&granted);
            session.counts(request, self.regime.faults.lag);
            if !request.lost {
                session.owned.get_or_insert(0);
            }
            session.access = granted;
            return;
        }
        assert!(self.sessions.iter().all(|session| session.first.sid != granted.sid), "a session of its own");
        self.logins[login].key = key;
        self.logins[login].session = Some(self.sessions.len());
        let lag = self.regime.faults.lag;
        // An end of all that was not over before this began may have ended it.
        let spared = self.users[user].ends.iter().all(|end| {
            end.ended.is_some_and(|(tick, at)| tick < request.begun && (lag == u64::MAX || at + lag < request.begun_at))
        });
        self.sessions.push(Session {
            user,
            login,
            tokens: vec![granted.refresh.clone()],
            owned: (!request.lost).then_some(0),
            access: granted.clone(),
            first: granted,
            answered: self.tick,
            ended: None,
            ends_begun: u32::from(!spared),
            out_of_turn: false,
            refused: false,
            overlapped: false,
            uses: BTreeMap::new(),
        });
    }

    fn refreshed(&mut self, request: &Request, answer: (u16, &str), response: &Response) {
        let What::Refresh { session, number, owner, reuse } = request.what else { return };
        let clock = self.world.now_at(request.node);
        let now = (self.tick, self.world.now());
        let session = &mut self.sessions[session];
        match answer {
            (200, _) => {
                session.counts(request, self.regime.faults.lag);
                assert!(!reuse, "token {number} of {} is spent", session.tokens.len() - 1);
                let granted = Granted::read(response);
                session.is_same(&granted);
                session.refused = false;
                if session.tokens.len() == number + 1 {
                    session.tokens.push(granted.refresh.clone());
                }
                assert_eq!(session.tokens[number + 1], granted.refresh, "one successor value");
                session.uses.entry(number).or_default().answered = true;
                if owner && !request.lost {
                    session.owned = session.owned.max(Some(number + 1));
                }
                session.access = granted;
            }
            (401, "refresh_invalid") => {
                let uses = &session.uses[&number];
                let in_turn = session.uses.range(number + 1..).next().is_none();
                let in_grace = clock.saturating_sub(uses.first.unwrap_or(clock)) <= GRACE;
                let promised = owner && session.is_promised() && in_turn && in_grace;
                assert!(!promised, "the owner is not refused with its newest token");
                if self.regime.refused_is_over {
                    session.ended.get_or_insert(now);
                }
                session.refused = true;
                session.out_of_turn = true;
            }
            other => panic!("a refresh is not answered with {other:?}"),
        }
    }

    /// Whether some block may have counted for a request.
    fn may_be_blocked(&self, user: usize, request: &Request) -> bool {
        let User { blocks, unblocks, ends } = &self.users[user];
        let lag = self.regime.faults.lag;
        blocks.iter().any(|block| {
            !unblocks.iter().any(|unblock| {
                let after = block
                    .ended
                    .is_some_and(|(tick, at)| tick < unblock.begun && (lag == u64::MAX || at + lag < unblock.begun_at));
                let before = unblock
                    .ended
                    .is_some_and(|(tick, at)| tick < request.begun && (lag == u64::MAX || at + lag < request.begun_at));
                // An end of all that had read the block writes it again: closed is the safe side.
                unblock.done && after && before && unblock.alone_among(ends)
            })
        })
    }

    /// Whether some block surely counted for a request.
    fn must_be_blocked(&self, user: usize, request: &Request) -> bool {
        let User { blocks, unblocks, ends } = &self.users[user];
        let lag = self.regime.faults.lag;
        blocks.iter().any(|block| {
            let before = block
                .ended
                .is_some_and(|(tick, at)| tick < request.begun && (lag == u64::MAX || at + lag < request.begun_at));
            let standing = unblocks.iter().all(|unblock| unblock.ended.is_some_and(|(tick, _)| tick < block.begun));
            // Where nothing compares, an end of all that had read no block takes it away.
            let kept = self.regime.faults.compares || block.alone_among(ends);
            block.done && before && standing && kept
        })
    }
}

impl User {
    /// Whether no two changes of its epoch were ever under way at once.
    fn is_calm(&self) -> bool {
        let changes = || self.ends.iter().chain(&self.unblocks);
        changes().all(|change| change.alone_among(&self.ends) && change.alone_among(&self.unblocks))
    }
}

impl Span {
    /// Whether none of the others was under way while this was.
    fn alone_among(&self, others: &[Self]) -> bool {
        let apart = |one: &Self, other: &Self| one.ended.is_some_and(|(tick, _)| tick < other.begun);
        others.iter().all(|other| other.task == self.task || apart(self, other) || apart(other, self))
    }
}

impl Session {
    fn end_begins(&mut self) {
        self.ends_begun += 1;
    }

    /// Whether its owner may rely on it.
    fn is_promised(&self) -> bool {
        self.ends_begun == 0 && !self.out_of_turn
    }

    /// A success must not come after an acknowledged end.
    fn counts(&self, request: &Request, lag: u64) {
        let Some((tick, at)) = self.ended else { return };
        let seen = lag == u64::MAX || at + lag < request.begun_at;
        assert!(request.begun < tick || !seen, "session {} is over", self.login);
    }

    fn is_same(&self, granted: &Granted) {
        let what =
            |g: &Granted| (g.sid.clone(), g.user.clone(), g.app.clone(), g.created_at.clone(), g.expires_at.clone());
        assert_eq!(what(granted), what(&self.first), "what a session is never changes");
    }
}

fn name(key: u8) -> String {
    format!("idempotency-key-{key}")
}
