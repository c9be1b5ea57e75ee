//! The attacks of `jwt_tool` and `myjwt`, and what was found in libraries since: each as an attacker
//! would make it, with claims that are right in everything else.

use base64ct::{Base64, Encoding as _};
use serde_json::{Value, json};

use crate::support::{FIRST, MAC, Pair, THIRD, World, decode, encode, hs256, mac_jwk, part, set, token};

/// A node, a token of its own, and that token's parts.
struct Case {
    world: World,
    token: String,
    header: Value,
    claims: Value,
}

impl Case {
    fn new() -> Self {
        let world = World::new();
        let token = world.token();
        assert!(world.accepts(&token));
        let (header, claims) = (part(&token, 0), part(&token, 1));
        Self { world, token, header, claims }
    }

    /// The header with one member changed or added.
    fn header_with(&self, name: &str, value: impl Into<Value>) -> Vec<u8> {
        let mut header = self.header.clone();
        header[name] = value.into();
        header.to_string().into_bytes()
    }

    fn claims(&self) -> Vec<u8> {
        self.claims.to_string().into_bytes()
    }

    /// Refuses a token of this header and the right claims, whoever signed it: the owner of the
    /// key, an attacker, nobody.
    fn refuses_header(&self, header: &[u8]) {
        let claims = self.claims();
        self.world.refuses(&token(header, &claims, |m| FIRST.sign(m)));
        self.world.refuses(&token(header, &claims, |m| THIRD.sign(m)));
        self.world.refuses(&token(header, &claims, |m| hs256(&decode(MAC), m)));
        self.world.refuses(&token(header, &claims, |m| hs256(b"", m)));
        self.world.refuses(&token(header, &claims, |_| Vec::new()));
    }

    /// Refuses these claims from the owner of the key.
    fn refuses_claims(&self, claims: &[u8]) {
        self.world.refuses(&token(self.header.to_string().as_bytes(), claims, |m| FIRST.sign(m)));
    }

    fn with_claim(&self, name: &str, value: impl Into<Value>) -> Vec<u8> {
        let mut claims = self.claims.clone();
        claims[name] = value.into();
        claims.to_string().into_bytes()
    }
}

#[test]
fn what_is_forged_here_would_pass_with_the_right_key() {
    let case = Case::new();
    let header = case.header.to_string();
    assert!(case.world.accepts(&token(header.as_bytes(), &case.claims(), |m| FIRST.sign(m))));
    let mac = case.header_with("kid", "mac");
    let mac = String::from_utf8_lossy(&mac).replace("EdDSA", "HS256");
    assert!(case.world.accepts(&token(mac.as_bytes(), &case.claims(), |m| hs256(&decode(MAC), m))));
}

#[test]
fn a1_a2_cve_2015_2951_alg_none_is_refused_in_any_spelling() {
    let case = Case::new();
    for alg in
        ["none", "None", "NONE", "nOnE", "none ", "", "null", "eddsa", "EDDSA", "hs256", "HS256 ", "HS384", "HS512"]
    {
        case.refuses_header(&case.header_with("alg", alg));
    }
    for alg in [Value::Null, json!(0), json!(false), json!(["EdDSA"]), json!({"EdDSA": 1})] {
        case.refuses_header(&case.header_with("alg", alg));
    }
    let mut missing = case.header.clone();
    missing.as_object_mut().unwrap().remove("alg");
    case.refuses_header(missing.to_string().as_bytes());
}

#[test]
fn a1_other_algorithms_are_refused_for_every_key() {
    let case = Case::new();
    for alg in ["RS256", "RS512", "PS256", "ES256", "ES256K", "ES384", "ES512", "Ed448", "HS1", "dir", "A128KW"] {
        for kid in ["first", "second", "mac"] {
            let header = json!({"alg": alg, "typ": "at+jwt", "kid": kid});
            case.refuses_header(header.to_string().as_bytes());
        }
    }
}

#[test]
fn a3_cve_2016_10555_a_public_key_is_no_mac_key() {
    let case = Case::new();
    // As an attacker could have it, from JWKS or a certificate.
    let point = decode(FIRST.x);
    let der = [&decode("MCowBQYDK2VwAyEA")[..], &point].concat();
    let pem = format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----", Base64::encode_string(&der));
    let jwk = format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{}"}}"#, FIRST.x);
    let published = case.world.send("GET", "/.well-known/jwks.json", &[], "").body;
    let secrets: [&[u8]; 7] = [
        &point,
        FIRST.x.as_bytes(),
        &der,
        pem.as_bytes(),
        &[pem.as_bytes(), b"\n"].concat(),
        jwk.as_bytes(),
        &published,
    ];
    for kid in ["first", "second", "mac"] {
        let header = json!({"alg": "HS256", "typ": "at+jwt", "kid": kid}).to_string();
        for secret in secrets {
            case.world.refuses(&token(header.as_bytes(), &case.claims(), |m| hs256(secret, m)));
        }
    }
}

#[test]
fn a3_a_key_is_bound_to_one_algorithm() {
    let case = Case::new();
    for (alg, kid) in
        [("HS256", "first"), ("Ed25519", "first"), ("EdDSA", "mac"), ("Ed25519", "mac"), ("EdDSA", "second")]
    {
        case.refuses_header(json!({"alg": alg, "typ": "at+jwt", "kid": kid}).to_string().as_bytes());
    }
}

#[test]
fn a16_cve_2019_20933_cve_2020_28637_a_blank_password_signs_nothing() {
    let case = Case::new();
    for kid in ["mac", "first", "", "/dev/null"] {
        let header = json!({"alg": "HS256", "typ": "at+jwt", "kid": kid}).to_string();
        for secret in [&b""[..], b"\0", &[0; 32], &[0; 64], b"null", b"undefined"] {
            case.world.refuses(&token(header.as_bytes(), &case.claims(), |m| hs256(secret, m)));
        }
    }
}

#[test]
fn a16_common_secrets_sign_nothing() {
    let case = Case::new();
    let header = json!({"alg": "HS256", "typ": "at+jwt", "kid": "mac"}).to_string();
    for secret in [
        "secret",
        "password",
        "changeme",
        "jwt",
        "key",
        "token",
        "admin",
        "test",
        "edgepass",
        "your-256-bit-secret",
        "your-secret-key",
        "supersecret",
        "my_secret",
        "mac",
        "first",
        "https://login.example",
        "wx1",
        "s1",
        "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow",
        MAC,
    ] {
        case.world.refuses(&token(header.as_bytes(), &case.claims(), |m| hs256(secret.as_bytes(), m)));
    }
}

#[test]
fn a7_cve_2020_28042_a_missing_signature_is_refused() {
    let case = Case::new();
    let (signed, signature) = case.token.rsplit_once('.').unwrap();
    for changed in ["", "AA", "AAAA", &signature[..40], &format!("{signature}{signature}"), &format!("{signature}AA")] {
        case.world.refuses(&format!("{signed}.{changed}"));
    }
    case.world.refuses(signed);
    case.world.refuses(&format!("{signed}.{signature}."));
    case.world.refuses(&format!(".{signed}.{signature}"));
}

#[test]
fn a4_cve_2018_0114_a_key_inside_the_token_is_not_used() {
    let case = Case::new();
    let own = json!({"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": "first", "x": THIRD.x});
    case.refuses_header(&case.header_with("jwk", own.clone()));
    let unknown = json!({"alg": "EdDSA", "typ": "at+jwt", "kid": "third", "jwk": own});
    case.refuses_header(unknown.to_string().as_bytes());
}

#[test]
fn a4_jku_x5u_and_x5c_are_not_followed() {
    let case = Case::new();
    for url in
        ["http://127.0.0.1:9/jwks.json", "https://evil.example/jwks.json", "file:///etc/passwd", "//evil.example"]
    {
        for name in ["jku", "x5u"] {
            case.refuses_header(&case.header_with(name, url));
        }
    }
    case.refuses_header(&case.header_with("x5c", json!(["MIIB"])));
    case.refuses_header(&case.header_with("x5t#S256", "AAAA"));
}

#[test]
fn a5_a_kid_is_a_name_and_nothing_else() {
    let case = Case::new();
    let long = "a".repeat(10_000);
    for kid in [
        "",
        " ",
        "first ",
        " first",
        "FIRST",
        "first\0",
        "\0",
        "../../../../../../dev/null",
        "/dev/null",
        "/etc/passwd",
        "file:///dev/null",
        "' UNION SELECT 'AAAA",
        "x' OR '1'='1",
        "first' --",
        "first|sleep 10",
        "`id`",
        "$(id)",
        "%66irst",
        "first\r\n{\"level\":\"INFO\",\"event\":\"login.ok\"}",
        "\u{1b}[31mfirst",
        "\u{202e}tsrif",
        long.as_str(),
    ] {
        case.refuses_header(&case.header_with("kid", kid));
    }
    for kid in [Value::Null, json!(1), json!(["first"]), json!({"kid": "first"})] {
        case.refuses_header(&case.header_with("kid", kid));
    }
    // H3: nor does it write lines of its own into the log.
    let log = case.world.log();
    assert!(log.lines().all(|line| serde_json::from_str::<Value>(line).is_ok_and(|line| line.is_object())));
    assert!(!log.contains('\u{1b}') && !log.contains("UNION"));
}

#[test]
fn a6_extensions_nobody_implements_are_refused() {
    let case = Case::new();
    for header in [
        json!({"crit": ["b64"], "b64": false}),
        json!({"b64": false}),
        json!({"b64": true}),
        json!({"crit": ["exp"], "exp": 0}),
        json!({"crit": []}),
        json!({"crit": "b64"}),
        json!({"zip": "DEF"}),
        json!({"cty": "JWT"}),
        json!({"nonce": "a"}),
    ] {
        let mut all = case.header.clone();
        all.as_object_mut().unwrap().extend(header.as_object().unwrap().clone());
        case.refuses_header(all.to_string().as_bytes());
    }
    // RFC 7797: the payload as it is, signed so by the owner of the key.
    let header = encode(case.header_with("b64", false));
    let claims = String::from_utf8(case.claims()).unwrap();
    let signature = encode(FIRST.sign(format!("{header}.{claims}").as_bytes()));
    case.world.refuses(&format!("{header}.{claims}.{signature}"));
    case.world.refuses(&format!("{header}..{signature}"));
}

#[test]
fn a7_only_the_compact_form_in_canonical_base64url_is_read() {
    let case = Case::new();
    let [header, claims, signature] = case.token.split('.').collect::<Vec<_>>().try_into().unwrap();
    let flattened = json!({"payload": claims, "protected": header, "signature": signature});
    let general = json!({"payload": claims, "signatures": [{"protected": header, "signature": signature}]});
    let unprotected = json!({"payload": claims, "protected": header, "header": {"kid": "mac"}, "signature": signature});
    for json in [flattened, general, unprotected] {
        case.world.refuses(&json.to_string());
    }
    for changed in [
        format!("{header}.{claims}.{signature}="),
        format!("{header}.{claims}.{signature}=="),
        format!("{header}=.{claims}.{signature}"),
        format!("{header}.{claims}. {signature}"),
        format!("{header}.\n{claims}.{signature}"),
        format!("{header}.{claims}.{}", signature.replace('-', "+").replace('_', "/") + "+"),
        format!("{header}.{claims}.{signature}%3D"),
        format!("{header}..{signature}"),
        format!("..{signature}"),
        "..".to_owned(),
        String::from("."),
    ] {
        case.world.refuses(&changed);
    }
}

/// The last character of 64 bytes carries four bits that mean nothing.
#[test]
fn a7_stray_bits_at_the_end_of_a_part_are_refused() {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let case = Case::new();
    let last = case.token.chars().last().unwrap();
    let at = ALPHABET.iter().position(|b| char::from(*b) == last).unwrap();
    assert_eq!(at % 16, 0, "64 bytes end in a character without stray bits");
    for stray in 1..16 {
        let mut changed = case.token.clone();
        changed.pop();
        changed.push(char::from(ALPHABET[at + stray]));
        case.world.refuses(&changed);
    }
}

#[test]
fn a8_encrypted_tokens_are_refused() {
    let case = Case::new();
    for header in [
        json!({"alg": "dir", "enc": "A256GCM", "kid": "mac"}),
        json!({"alg": "RSA-OAEP", "enc": "A128CBC-HS256", "zip": "DEF", "kid": "first"}),
        json!({"alg": "PBES2-HS256+A128KW", "enc": "A128GCM", "p2s": "AAAA", "p2c": 2_147_483_647}),
    ] {
        let header = encode(header.to_string());
        case.world.refuses(&format!("{header}..AAAA.AAAA.AAAA"));
        case.world.refuses(&format!("{header}.AAAA.AAAA.AAAA.AAAA"));
    }
}

#[test]
fn a9_a_member_sent_twice_and_bytes_that_are_no_text_are_refused() {
    let case = Case::new();
    let header = case.header.to_string();
    let claims = String::from_utf8(case.claims()).unwrap();
    for (name, first) in [("alg", r#""none""#), ("alg", r#""EdDSA""#), ("kid", r#""mac""#), ("typ", r#""at+jwt""#)] {
        case.refuses_header(header.replacen('{', &format!(r#"{{"{name}":{first},"#), 1).as_bytes());
        case.refuses_header(header.replacen('}', &format!(r#","{name}":{first}}}"#), 1).as_bytes());
    }
    for (name, first) in [("sub", r#""AAAAAAAAAAAAAAAAAAAAAA""#), ("exp", "9999999999"), ("aud", r#""x""#)] {
        case.refuses_claims(claims.replacen('{', &format!(r#"{{"{name}":{first},"#), 1).as_bytes());
    }
    case.refuses_claims(claims.replacen('{', r#"{"\u0073ub":"AAAAAAAAAAAAAAAAAAAAAA","#, 1).as_bytes());
    case.refuses_claims(&[claims.replacen('}', r#","x":""#, 1).as_bytes(), b"\xff\"}"].concat());
    case.refuses_claims(&[b"\xef\xbb\xbf", claims.as_bytes()].concat());
    case.refuses_claims(format!("{claims}{claims}").as_bytes());
    case.refuses_claims(format!("{claims}\0").as_bytes());
    case.refuses_claims(b"");
}

#[test]
fn a10_a_long_token_is_refused_before_it_is_decoded() {
    let case = Case::new();
    for length in [3600, 100_000] {
        let long = case.with_claim("x", "a".repeat(length));
        case.refuses_claims(&long);
    }
    case.world.refuses(&"a".repeat(1_000_000));
    case.world.refuses(&".".repeat(10_000));
}

#[test]
fn a11_every_claim_is_required() {
    let case = Case::new();
    for name in ["iss", "aud", "sub", "client_id", "sid", "iat", "exp", "jti"] {
        let mut claims = case.claims.clone();
        assert!(claims.as_object_mut().unwrap().remove(name).is_some(), "{name}");
        case.refuses_claims(claims.to_string().as_bytes());
    }
    for claims in ["null", "[]", "{}", "\"\"", "1", "[{}]"] {
        case.refuses_claims(claims.as_bytes());
    }
}

#[test]
fn a11_cve_2026_25537_a_claim_of_another_type_is_no_missing_claim() {
    let case = Case::new();
    for name in ["iss", "aud", "sub", "client_id", "sid", "jti"] {
        for value in [Value::Null, json!(1), json!(true), json!([case.claims[name]]), json!({"v": case.claims[name]})] {
            case.refuses_claims(&case.with_claim(name, value));
        }
    }
    for name in ["iat", "exp", "nbf"] {
        let text = Value::from(case.claims["iat"].to_string());
        for value in
            [Value::Null, text, json!("9999999999"), json!(-1), json!(1.5), json!(1e300), json!(true), json!([])]
        {
            case.refuses_claims(&case.with_claim(name, value));
        }
    }
}

#[test]
fn a12_time_is_checked() {
    let case = Case::new();
    let now = case.claims["iat"].as_u64().unwrap();
    for (name, at) in
        [("exp", now), ("exp", now - 1), ("exp", 0), ("iat", now + 61), ("nbf", now + 61), ("nbf", u64::MAX)]
    {
        // A logout takes an expired token, so this one is asked of the routes that do not.
        let header = case.header.to_string();
        let token = token(header.as_bytes(), &case.with_claim(name, at), |m| FIRST.sign(m));
        assert!(!case.world.accepts(&token), "{name} {at}");
    }
    let ahead = token(case.header.to_string().as_bytes(), &case.with_claim("iat", now + 60), |m| FIRST.sign(m));
    assert!(case.world.accepts(&ahead), "another node's clock may be a little ahead");
}

#[test]
fn a13_a14_issuer_and_audience_are_compared_exactly() {
    let case = Case::new();
    for issuer in
        ["https://login.example/", "https://LOGIN.example", "http://login.example", "https://login.example.evil", ""]
    {
        case.refuses_claims(&case.with_claim("iss", issuer));
    }
    for audience in ["", "https://login.example/", "https://other.example", "*"] {
        case.refuses_claims(&case.with_claim("aud", audience));
    }
    case.refuses_claims(&case.with_claim("client_id", "another"));
    // Another deployment's key verifies none of its tokens here.
    let other = World::with_keys(&set(&[THIRD.jwk("first", "current")]));
    case.world.refuses(&other.token());
}

#[test]
fn a15_other_kinds_of_token_are_refused() {
    let case = Case::new();
    for typ in
        ["JWT", "jwt", "at", "AT+JWT", "at+jwt ", "id+jwt", "rt+jwt", "logout+jwt", "dpop+jwt", "secevent+jwt", ""]
    {
        case.refuses_header(&case.header_with("typ", typ));
    }
    let id_token = json!({
        "iss": case.claims["iss"], "aud": "wechat", "sub": case.claims["sub"], "iat": case.claims["iat"],
        "exp": case.claims["exp"], "nonce": "n", "auth_time": case.claims["iat"],
    });
    case.refuses_claims(id_token.to_string().as_bytes());
    let long_form = token(&case.header_with("typ", "application/at+jwt"), &case.claims(), |m| FIRST.sign(m));
    assert!(case.world.accepts(&long_form), "the same type, by its whole name");
}

#[test]
fn a15_access_and_refresh_tokens_are_not_taken_for_each_other() {
    let world = World::new();
    let login = world.log_in("code");
    world.refuses(login["refresh_token"].as_str().unwrap());
    let body = json!({"refresh_token": login["access_token"]}).to_string();
    let refused = world.send("POST", "/api/logout", &[], &body);
    assert_eq!(refused.status, 401);
    assert!(world.accepts(login["access_token"].as_str().unwrap()), "nothing was ended");
}

#[test]
fn a18_cve_2022_21449_a_signature_of_zeros_is_refused() {
    let case = Case::new();
    for bytes in [&[0; 64][..], &[0; 32], &[0xff; 64], &[[1].as_slice(), &[0; 63]].concat()] {
        for (alg, kid) in [("EdDSA", "first"), ("EdDSA", "second"), ("HS256", "mac"), ("ES256", "first")] {
            let header = json!({"alg": alg, "typ": "at+jwt", "kid": kid}).to_string();
            case.world.refuses(&token(header.as_bytes(), &case.claims(), |_| bytes.to_vec()));
        }
    }
}

#[test]
fn a18_a_scalar_above_the_order_of_the_group_is_refused() {
    // RFC 8032, 5.1: L, little-endian.
    let order = [
        0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
    ];
    let case = Case::new();
    let (signed, signature) = case.token.rsplit_once('.').unwrap();
    let mut malleable = decode(signature);
    let mut carry = 0;
    for (byte, add) in malleable[32..].iter_mut().zip(order) {
        let sum = u16::from(*byte) + add + carry;
        *byte = u8::try_from(sum & 0xff).unwrap();
        carry = sum >> 8;
    }
    case.world.refuses(&format!("{signed}.{}", encode(malleable)));
}

#[test]
fn a22_every_changed_byte_is_refused_alike() {
    let case = Case::new();
    for at in 0..case.token.len() {
        let mut changed = case.token.clone();
        let with = if changed[at..].starts_with('A') { "B" } else { "A" };
        changed.replace_range(at..=at, with);
        case.world.refuses(&changed);
    }
}

/// The canary is in every key there is: nothing of one is in an answer or in the log.
#[test]
fn b6_no_key_is_shown() {
    let world = World::with_keys(&set(&[FIRST.jwk("first", "current"), mac_jwk("mac", "next")]));
    let token = world.token();
    world.refuses(&format!("{token}A"));
    let mut seen = world.log();
    for path in ["/.well-known/jwks.json", "/.well-known/oauth-authorization-server", "/readyz", "/version"] {
        seen.push_str(&String::from_utf8_lossy(&world.send("GET", path, &[], "").body));
    }
    for Pair { d, .. } in [FIRST, SECOND_UNUSED] {
        assert!(!seen.contains(d));
    }
    assert!(!seen.contains(MAC) && !seen.contains(&token) && seen.contains(FIRST.x));
}

const SECOND_UNUSED: Pair = crate::support::SECOND;
