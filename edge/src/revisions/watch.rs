//! A file that is looked at now and then, and given on when its content has changed.
//!
//! It is read again and again instead of being announced by the system, because the system announces
//! nothing for network file systems, and for a mounted config map only that a link far up the path
//! has changed. Content decides, not the time of the last change: a copy may keep that, a new link
//! may have an older one. A component is a few megabytes; reading one takes a few milliseconds.

use std::{
    fs, io,
    io::Read as _,
    path::{Path, PathBuf},
};

use super::MAX_COMPONENT_BYTES;
use crate::engine::Digest;

/// A file and what is known of it. Blocks while it looks.
#[derive(Debug)]
pub struct Watch {
    path: PathBuf,
    /// What was given on last, or is known already.
    given: Option<Digest>,
    /// What was there at the last look.
    seen: Option<Digest>,
    /// What is wrong was said.
    warned: bool,
}

impl Watch {
    /// Watches `path`; the file need not be there yet.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), given: None, seen: None, warned: false }
    }

    /// The same, of which this content is known and not given on.
    #[must_use]
    pub fn knowing(mut self, digest: Digest) -> Self {
        self.given = Some(digest);
        self
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The content, when it is another than the last that was given on, and was the same at the look
    /// before: a file that is being written is left alone. A file that is empty, longer than a
    /// component may be, or not readable is none, and said to be so once.
    pub fn look(&mut self) -> Option<Vec<u8>> {
        let content = match read(&self.path) {
            Ok(content) => content,
            Err(error) => {
                self.seen = None;
                if !std::mem::replace(&mut self.warned, true) {
                    tracing::warn!(file = %self.path.display(), %error, "the watched component is not taken");
                }
                return None;
            }
        };
        self.warned = false;
        let digest = Digest::of(&content);
        let settled = self.seen.replace(digest) == Some(digest);
        if !settled || self.given == Some(digest) {
            return None;
        }
        self.given = Some(digest);
        Some(content)
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    // Opening a pipe would wait for whoever writes into it.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a file"));
    }
    let mut content = Vec::new();
    let most = u64::try_from(MAX_COMPONENT_BYTES).unwrap_or(u64::MAX);
    fs::File::open(path)?.take(most.saturating_add(1)).read_to_end(&mut content)?;
    match content.len() {
        0 => Err(io::Error::other("empty")),
        1..=MAX_COMPONENT_BYTES => Ok(content),
        _ => Err(io::Error::other("longer than a component may be")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn new_content_is_given_once_it_has_settled() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("component.wasm");
        let mut watch = Watch::new(&path);
        let put = |text: &str| fs::write(&path, text).expect("writes");
        assert_eq!(watch.look(), None, "not there");
        put("on");
        assert_eq!(watch.look(), None, "just seen");
        put("one");
        assert_eq!(watch.look(), None, "still growing");
        assert_eq!(watch.look().as_deref(), Some(&b"one"[..]));
        assert_eq!(watch.look(), None, "given already");
        put("two");
        assert_eq!(watch.look(), None);
        put("one");
        assert_eq!(watch.look(), None);
        assert_eq!(watch.look(), None, "as it was");
        put("two");
        assert_eq!(watch.look(), None);
        assert_eq!(watch.look().as_deref(), Some(&b"two"[..]));
        put("one");
        assert_eq!(watch.look(), None);
        assert_eq!(watch.look().as_deref(), Some(&b"one"[..]), "back again is new again");
    }

    #[test]
    fn what_is_known_is_not_given() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("component.wasm");
        fs::write(&path, "one").expect("writes");
        let mut watch = Watch::new(&path).knowing(Digest::of(b"one"));
        assert_eq!((watch.look(), watch.look(), watch.path()), (None, None, &*path));
    }

    #[test]
    fn a_link_that_moves_is_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        // As a config map is mounted: the file is a link through a link that is replaced whole.
        for (name, text) in [("1", "one"), ("2", "two")] {
            fs::create_dir(at(name)).expect("a folder");
            fs::write(at(name).join("component.wasm"), text).expect("writes");
        }
        symlink("1", at("data")).expect("a link");
        symlink("data/component.wasm", at("component.wasm")).expect("a link");
        let mut watch = Watch::new(at("component.wasm")).knowing(Digest::of(b"one"));
        assert_eq!((watch.look(), watch.look()), (None, None));
        symlink("2", at("new")).expect("a link");
        fs::rename(at("new"), at("data")).expect("moved");
        assert_eq!(watch.look(), None);
        assert_eq!(watch.look().as_deref(), Some(&b"two"[..]));
    }

    #[test]
    fn what_is_no_component_is_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("component.wasm");
        let mut watch = Watch::new(&path);
        fs::create_dir(&path).expect("a folder");
        assert_eq!((watch.look(), watch.look(), watch.warned), (None, None, true));
        fs::remove_dir(&path).expect("gone");
        let file = fs::File::create(&path).expect("a file");
        assert_eq!((watch.look(), watch.look(), watch.warned), (None, None, true), "empty");
        let most = u64::try_from(MAX_COMPONENT_BYTES).expect("fits");
        file.set_len(most + 1).expect("longer");
        assert_eq!((watch.look(), watch.look(), watch.warned), (None, None, true), "too long");
        file.set_len(most).expect("shorter");
        assert_eq!((watch.look(), watch.warned), (None, false), "said again if it goes wrong again");
        assert_eq!(watch.look().map(|content| content.len()), Some(MAX_COMPONENT_BYTES));
    }
}
