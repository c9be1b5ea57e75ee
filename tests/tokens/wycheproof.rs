//! Project Wycheproof's vectors against what verifies our tokens.

use ed25519_dalek::VerifyingKey as Ed25519Public;
use edgepass::token::{
    keys::MacKey,
    signing::{Public, VerifyingKey},
};
use wycheproof::{TestResult, eddsa, mac};

#[test]
fn a18_hmac_sha256() {
    let set = mac::TestSet::load(mac::TestName::HmacSha256).unwrap();
    let mut counted = 0;
    for group in &set.test_groups {
        for test in &group.tests {
            let key = MacKey::of_bytes(&test.key);
            let valid = test.result == TestResult::Valid;
            // The whole MAC in tokens; a refresh token has the left part of one.
            let whole = group.tag_size == 256;
            let verifying = VerifyingKey::new("k".into(), Public::Hs256(key.clone()));
            assert_eq!(verifying.verifies(&test.msg, &test.tag), valid && whole, "{}: {}", test.tc_id, test.comment);
            assert_eq!(key.verifies_left(&test.msg, &test.tag), valid, "{}: {}", test.tc_id, test.comment);
            counted += 1;
        }
    }
    assert_eq!(counted, 174);
}

#[test]
fn a18_ed25519_strictly() {
    let set = eddsa::TestSet::load(eddsa::TestName::Ed25519).unwrap();
    let mut counted = 0;
    for group in &set.test_groups {
        let public: [u8; 32] = group.key.pk.as_ref().try_into().unwrap();
        let public = Ed25519Public::from_bytes(&public).unwrap();
        for key in [Public::EdDsa(public), Public::Ed25519(public)] {
            let key = VerifyingKey::new("k".into(), key);
            for test in &group.tests {
                let valid = test.result == TestResult::Valid;
                assert_eq!(key.verifies(&test.msg, &test.sig), valid, "{}: {}", test.tc_id, test.comment);
                counted += 1;
            }
        }
    }
    assert_eq!(counted, 2 * 151);
}

/// The eight points of small order, in each of their encodings (RFC 7748 §6.1 and the list of
/// *Taming the many `EdDSA`s*, table 5): under them a fitting signature is good for many messages.
#[test]
fn a18_points_of_small_order_verify_nothing() {
    const SMALL: [&str; 12] = [
        "0100000000000000000000000000000000000000000000000000000000000000",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "0000000000000000000000000000000000000000000000000000000000000080",
        "0000000000000000000000000000000000000000000000000000000000000000",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
        "0100000000000000000000000000000000000000000000000000000000000080",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    ];
    let bytes =
        |hex: &str| -> [u8; 32] { std::array::from_fn(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()) };
    let mut points = 0;
    for public in SMALL {
        // Some libraries read the encodings that are not canonical; whether this one does is its own affair.
        let Ok(public) = Ed25519Public::from_bytes(&bytes(public)) else { continue };
        points += 1;
        let key = VerifyingKey::new("k".into(), Public::EdDsa(public));
        for r in SMALL {
            let signature = [bytes(r), [0; 32]].concat();
            for message in 0..32_u8 {
                assert!(!key.verifies(&[message], &signature), "{r}");
            }
        }
    }
    assert!(points >= 8, "{points}");
}
