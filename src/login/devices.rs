//! A user's sessions: showing them, keeping their number below the limit, and the list that names
//! them. The list is a hint: each entry is checked before it counts, and nothing that must hold
//! depends on one being there.

use super::{
    Login, LoginError, StoreFault,
    live::{AuthError, LiveError, Named},
    read_epoch, read_moved, read_recent,
};
use crate::{
    clock::UnixSeconds,
    config::LimitPolicy,
    session::{MAX_RECENT, Moved, Recent, Session, SessionId},
    store::{
        Change, Store,
        envelope::{self, Unreadable},
    },
    timing::Stages,
    token::keys::Subject,
};

/// A session as its user may see it.
pub struct Listed {
    /// The session.
    pub sid: SessionId,
    /// What is remembered of it.
    pub session: Session,
    /// When it was last refreshed, to the hour; until then, when it began.
    pub last_seen: UnixSeconds,
}

/// The sessions of a caller.
pub struct Devices {
    /// The caller's own.
    pub current: SessionId,
    /// All that are live, the newest first; the caller's own is always among them.
    pub sessions: Vec<Listed>,
}

impl<S: Store, P> Login<S, P> {
    /// The session of an access token, and when it was last seen.
    ///
    /// # Errors
    /// [`AuthError`] for a token or a session that no longer counts.
    pub async fn show(&self, token: &str, stages: &Stages<'_>) -> Result<Listed, AuthError> {
        let access = self.authenticate_offline(token, None, stages)?;
        let mut caller = self.caller(&access, vec![self.layout.moved(access.sid)], stages).await?;
        let [moved] = caller.also()?;
        let moved = read_moved(moved.as_deref()).map_err(LiveError::from)?;
        Ok(Listed::of(access.sid, caller.session, moved))
    }

    /// The live sessions of the user of an access token.
    ///
    /// # Errors
    /// [`AuthError`] for a token or a session that no longer counts. A list that cannot be read shows
    /// the caller's session alone; a session that cannot be read is the store's fault.
    pub async fn devices(&self, token: &str, stages: &Stages<'_>) -> Result<Devices, AuthError> {
        let access = self.authenticate_offline(token, None, stages)?;
        let also = vec![self.layout.moved(access.sid), self.layout.recent(access.subject)];
        let mut caller = self.caller(&access, also, stages).await?;
        let [moved, recent] = caller.also()?;
        let moved = read_moved(moved.as_deref()).map_err(LiveError::from)?;
        let mut others = read_recent(recent.as_deref());
        others.retain(|sid| *sid != access.sid);
        let mut sessions = vec![Listed::of(access.sid, caller.session, moved)];
        for other in self.examine(access.subject, &others, stages).await.map_err(LiveError::from)? {
            match other {
                Ok(listed) => insert(&mut sessions, listed),
                Err(LiveError::Ended(_)) => {}
                Err(unknown) => return Err(unknown.into()),
            }
        }
        Ok(Devices { current: access.sid, sessions })
    }

    /// The live sessions that must end so that one more does not exceed the limit, the oldest ones.
    /// Nothing is read where there is no limit. What cannot be read does not count: that costs a user
    /// nothing but a session more.
    ///
    /// # Errors
    /// [`LoginError::SessionLimit`] where the policy is to refuse; [`LoginError::Store`].
    pub(super) async fn make_room(&self, subject: Subject, stages: &Stages<'_>) -> Result<Room, LoginError> {
        let mut room = Room::default();
        let Some(others) = self.config().session_limit.checked_sub(1) else { return Ok(room) };
        let [recent] = self.get_some([&self.layout.recent(subject)], stages).await?;
        let sids = read_recent(recent.as_deref());
        let mut live = Vec::new();
        for (sid, examined) in sids.iter().zip(self.examine(subject, &sids, stages).await?) {
            match examined {
                Ok(listed) => insert(&mut live, listed),
                Err(LiveError::Ended(_)) => room.over.push(*sid),
                Err(_) => {}
            }
        }
        room.surplus = live.split_off(others.min(live.len()));
        match self.config().session_limit_policy {
            LimitPolicy::Refuse if !room.surplus.is_empty() => Err(LoginError::SessionLimit(subject)),
            _ => Ok(room),
        }
    }

    /// Each of `sids` that is a live session of `subject`, or why it is not, all in one read.
    async fn examine(
        &self,
        subject: Subject,
        sids: &[SessionId],
        stages: &Stages<'_>,
    ) -> Result<Vec<Result<Listed, LiveError>>, StoreFault> {
        if sids.is_empty() {
            return Ok(Vec::new());
        }
        let of_session =
            |&sid: &SessionId| [self.layout.session(sid), self.layout.tombstone(sid), self.layout.moved(sid)];
        let keys: Vec<String> =
            std::iter::once(self.layout.epoch(subject)).chain(sids.iter().flat_map(of_session)).collect();
        let mut records = self.get(&keys, stages).await?.into_iter();
        let epoch = read_epoch(records.next().flatten().as_deref())?;
        let examined = sids.iter().map(|&sid| {
            let [session, tombstone, moved] = [records.next(), records.next(), records.next()].map(Option::flatten);
            let named = Named { sid, subject, is_young: false };
            let session = self.live(named, [session, tombstone], epoch, stages)?;
            let moved = read_moved(moved.as_deref())?;
            if self.is_idle(Self::last_used(&session, moved)) {
                return Err(LiveError::Ended("session.idle"));
            }
            Ok(Listed::of(sid, session, moved))
        });
        Ok(examined.collect())
    }

    /// Names the session in its user's list, which no answer waits for, and takes out what is `over`.
    /// Nothing is written where it is named already, as it is at most refreshes.
    pub fn remember(
        &self,
        subject: Subject,
        sid: SessionId,
        over: Vec<SessionId>,
    ) -> impl Future<Output = ()> + use<S, P> {
        let store = self.store.clone();
        let layout = self.layout.clone();
        let expires = self.now().after(self.config().longest_session());
        async move {
            let key = layout.recent(subject);
            let Ok(values) = store.get(&[&key]).await else { return };
            let read = |value: &Vec<u8>| envelope::read_plain::<Recent>(value);
            let mut recent = match values.first().and_then(Option::as_ref).map(read).transpose() {
                Ok(recent) => recent.unwrap_or_default(),
                Err(Unreadable::Damaged) => Recent::default(),
                // A newer build's list is better than a new one of ours.
                Err(Unreadable::Foreign) => return,
            };
            if recent.0.contains(&sid) {
                return;
            }
            recent.0.retain(|sid| !over.contains(sid));
            // Of the oldest, one that is over goes before one that may be live. No more are looked at:
            // this is done at every login of who logs in all the time.
            recent.0.truncate(MAX_RECENT);
            if recent.0.len() == MAX_RECENT {
                let oldest = recent.0.split_off(MAX_RECENT - OLDEST);
                let keys: Vec<String> = oldest.iter().map(|&sid| layout.session(sid)).collect();
                let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
                let Ok(sessions) = store.get(&keys).await else { return };
                let are_there = oldest.into_iter().zip(sessions).filter(|(_, session)| session.is_some());
                recent.0.extend(are_there.map(|(sid, _)| sid));
            }
            recent.add(sid);
            let value = envelope::plain(&recent, expires);
            // A lost list costs a line in the list of devices and nothing else.
            let _ = store.apply(vec![Change::Put { key, value, expires: expires.0 }]).await;
        }
    }
}

/// What a login finds of its user's sessions where their number is limited.
#[derive(Default)]
pub(super) struct Room {
    /// Live ones that are too many.
    pub(super) surplus: Vec<Listed>,
    /// What the list names and is over.
    pub(super) over: Vec<SessionId>,
}

impl Listed {
    /// To the hour: when exactly somebody was there is nobody's business later.
    fn of(sid: SessionId, session: Session, moved: Option<Moved>) -> Self {
        let last_seen = moved.map_or(session.created, |moved| UnixSeconds(moved.at.0 - moved.at.0 % 3600));
        Self { sid, last_seen: last_seen.max(session.created), session }
    }
}

/// Keeps the newest first; of those of one second, as they came, which is the list's order. There are a few dozen at most, and a sort of std's is 8 kB of component.
fn insert(sessions: &mut Vec<Listed>, listed: Listed) {
    let at = sessions.partition_point(|known| known.session.created >= listed.session.created);
    sessions.insert(at, listed);
}

/// How many of a full list's entries are looked at.
const OLDEST: usize = 8;
