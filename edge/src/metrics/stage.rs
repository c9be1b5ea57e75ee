//! `Server-Timing`, as our component writes it: where the time of a request went.

/// The stages that are counted, as the component names them.
pub(crate) const STAGES: [&str; 4] = ["parse", "platform", "store", "sign"];

/// The stages of a field in nanoseconds, in the order of [`STAGES`]; 0 of one that it does not name.
///
/// Only `name;dur=<milliseconds>` is read; what is not of that form is left out, with its entry.
pub(crate) fn read(field: &str) -> [u64; STAGES.len()] {
    let mut stages = [0; STAGES.len()];
    for entry in field.split(',').take(MAX_ENTRIES) {
        let Some((name, milliseconds)) = entry.trim().split_once(";dur=") else { continue };
        let stage = STAGES.iter().position(|stage| *stage == name);
        if let (Some(stage), Some(nanos)) = (stage, nanos(milliseconds)) {
            stages[stage] = nanos;
        }
    }
    stages
}

/// Milliseconds with up to six places behind the point, and less than a day.
fn nanos(milliseconds: &str) -> Option<u64> {
    let (whole, part) = milliseconds.split_once('.').unwrap_or((milliseconds, "0"));
    let digits =
        |text: &str, most: usize| (1..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole, 8) || !digits(part, 6) {
        return None;
    }
    let place = 10_u64.pow(6 - u32::try_from(part.len()).ok()?);
    Some(whole.parse::<u64>().ok()? * 1_000_000 + part.parse::<u64>().ok()? * place)
}

const MAX_ENTRIES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_read_in_nanoseconds() {
        assert_eq!(
            read("parse;dur=0.012, platform;dur=100.000, store;dur=3, sign;dur=0.5"),
            [12_000, 100_000_000, 3_000_000, 500_000]
        );
    }

    #[test]
    fn what_is_no_stage_is_left_out() {
        for field in [
            "",
            "parse",
            "parse;dur=",
            "parse;dur=-1",
            "parse;dur=1e9",
            "parse;dur=1.",
            "parse;dur=.5",
            "parse;dur=123456789",
            "parse;dur=0.1234567",
            "parse;desc=\"x\";dur=1",
            "PARSE;dur=1",
            "cache;dur=9",
            "parse;dur=١",
        ] {
            assert_eq!(read(field), [0; 4], "{field}");
        }
        assert_eq!(read(&format!("{}sign;dur=1", "x;dur=1,".repeat(100))), [0; 4], "nobody writes as many");
    }
}
