//! Which known name somebody may have meant.

/// The known name nearest to `name`, unless none is near.
pub(crate) fn nearest<'n>(name: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    // Two letters changed places, one is missing, one is wrong: longer names may have a slip more.
    let slips = 1 + name.chars().count().min(16) / 5;
    let near =
        known.into_iter().map(|known| (distance(name, known), known)).filter(|(far, _)| (1..=slips).contains(far));
    near.min().map(|(_, known)| known)
}

/// Letters inserted, removed or changed, and neighbours that changed places, each counting one.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(MAX).collect(), b.chars().take(MAX).collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<_>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = changed.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

/// No name is longer.
const MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_what_was_meant() {
        let known = ["workdir", "command", "watch", "request_timeout", "master_key"];
        for (name, expected) in [
            ("workdri", Some("workdir")),
            ("wach", Some("watch")),
            ("request_timout", Some("request_timeout")),
            ("reqest_timeot", Some("request_timeout")),
            ("mastr_key", Some("master_key")),
            ("command", None),
            ("something_else", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, known), expected, "{name}");
        }
    }

    #[test]
    fn each_slip_counts_one() {
        for (a, b, far) in
            [("", "", 0), ("ab", "ba", 1), ("abc", "ac", 1), ("abc", "abxc", 1), ("abc", "axc", 1), ("", "abc", 3)]
        {
            assert_eq!((distance(a, b), distance(b, a)), (far, far), "{a} {b}");
        }
    }
}
