"""Interoperation with PyJWT, joserfc and jose, both ways and across a rotation of the keys.

Each check prints one line; the first that fails ends the run with what was seen.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import warnings

import jwt
from joserfc import jwk as joserfc_jwk
from joserfc import jwt as joserfc_jwt

# It would have Ed25519 by its newer name, which the other two do not know by default.
warnings.filterwarnings("ignore", message="EdDSA is deprecated")

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORK = pathlib.Path(sys.argv[1])
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
EDGEPASS = TARGET / "release" / "edgepass"
ISSUER = "https://login.example"
AUDIENCE = "https://api.example"
REQUIRED = ["iss", "aud", "sub", "client_id", "sid", "iat", "exp", "jti"]

passed = 0


def check(name, seen, expected=True):
    global passed
    if seen != expected:
        sys.exit(f"interop: {name}: {seen!r} instead of {expected!r}")
    passed += 1
    print(f"  ok  {name}", flush=True)


def keygen(*arguments):
    """The value that `edgepass keygen` prints."""
    return subprocess.run([EDGEPASS, "keygen", "--quiet", *arguments], check=True, capture_output=True, text=True).stdout


def http(url, body=None, headers=None):
    """Status, headers and body of a request; a body is JSON and makes it a POST."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers or {})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


class Node:
    """`edgepass serve --sim` on free ports, over one state folder."""

    def __init__(self, state, keys_file=None, component="edgepass-node.wasm"):
        arguments = [EDGEPASS, "serve", "--listen", "127.0.0.1:0", "--sim", "127.0.0.1:0", "--state-dir", state]
        arguments += ["--component", TARGET / component]
        settings = {"issuer": ISSUER, "audience": AUDIENCE, "session_limit": "0"}
        if keys_file:
            settings["signing_keys"] = f"@{keys_file}"
        for name, value in settings.items():
            arguments += ["--variable", f"{name}={value}"]
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            arguments, cwd=ROOT, env={"PATH": os.environ["PATH"]}, stdout=subprocess.PIPE, stderr=self.log, text=True
        )
        self.url = self.after("listening on ")
        self.platform = self.after("WeChat is simulated on ").split(": ")[0]

    def after(self, words):
        """What follows `words` on a line that the node prints."""
        for line in self.process.stdout:
            if line.startswith(words):
                return line.removeprefix(words).strip()
        self.log.seek(0)
        sys.exit(f"interop: the node did not start: {self.log.read().decode()}")

    def stop(self):
        self.process.terminate()
        self.process.stdout.read()
        check("the node drains and ends", self.process.wait(timeout=60), 0)

    def token(self, user="alice"):
        """The access token of a new login."""
        code = json.loads(http(f"{self.platform}/sim/wechat/login", {"user": user})[2])["code"]
        status, _, body = http(f"{self.url}/api/login", {"code": code})
        if status != 200:
            sys.exit(f"interop: login: {status} {body!r}")
        return json.loads(body)["access_token"]

    def accepts(self, token):
        status = http(f"{self.url}/api/verify/any", headers={"authorization": f"Bearer {token}"})[0]
        return {200: True, 401: False}[status]

    def keys(self):
        return json.loads(http(f"{self.url}/.well-known/jwks.json")[2])

    def kids(self):
        return [key["kid"] for key in self.keys()["keys"]]


class Jose:
    """A long-lived verifier in Node.js, which keeps its key set while our node restarts."""

    def __init__(self):
        self.process = subprocess.Popen(
            ["node", "verifier.mjs"], cwd=WORK, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.fetches = 0

    def ask(self, do, **request):
        print(json.dumps({"do": do, **request}), file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline())
        self.fetches = answer.pop("fetches")
        return answer

    def verify(self, which, token):
        """The key that verified `token`, or jose's name for what is wrong."""
        answer = self.ask("verify", which=which, token=token, issuer=ISSUER, audience=AUDIENCE)
        return answer.get("kid") or answer["error"]

    def stop(self):
        self.process.stdin.close()
        check("the verifier ends", self.process.wait(timeout=10), 0)


def by_pyjwt(node, token, key=None, algorithm="EdDSA"):
    """The claims of `token`, by PyJWT from our JWKS, or from a key of its own."""
    key = key or jwt.PyJWKClient(f"{node.url}/.well-known/jwks.json").get_signing_key_from_jwt(token)
    options = {"require": REQUIRED}
    return jwt.decode(token, key, algorithms=[algorithm], audience=AUDIENCE, issuer=ISSUER, options=options)


def by_joserfc(keys, token, algorithm="EdDSA"):
    """The claims of `token`, by joserfc from a parsed JWKS."""
    decoded = joserfc_jwt.decode(token, joserfc_jwk.KeySet.import_key_set(keys), algorithms=[algorithm])
    rules = {name: {"essential": True} for name in REQUIRED}
    rules["iss"]["value"], rules["aud"]["value"] = ISSUER, AUDIENCE
    joserfc_jwt.JWTClaimsRegistry(**rules).validate(decoded.claims)
    return decoded.claims


def signed_by_pyjwt(jwk, header, claims):
    return jwt.encode(claims, jwt.PyJWK(jwk, algorithm=header["alg"]).key, algorithm=header["alg"], headers=header)


def signed_by_joserfc(jwk, header, claims):
    return joserfc_jwt.encode(header, claims, joserfc_jwk.KeySet.import_key_set({"keys": [jwk]}), algorithms=[header["alg"]])


def theirs(node, jose, jwk, algorithm):
    """Tokens of other libraries under our key: taken where the claims are right, and only there."""
    claims = jwt.decode(node.token(), options={"verify_signature": False})
    header = {"alg": algorithm, "typ": "at+jwt", "kid": jwk["kid"]}
    plain = {name: value for name, value in jwk.items() if name != "status"}
    now = int(time.time())
    wrong_claims = {
        "another audience": {"aud": "https://other.example"},
        "a list of audiences": {"aud": [AUDIENCE]},
        "another issuer": {"iss": ISSUER + "/"},
        "another app": {"client_id": "other"},
        "another user": {"sub": "AAAAAAAAAAAAAAAAAAAAAA"},
        "no session": {"sid": None},
        "a session that never was": {"sid": "AAAAAAAAAAAAAAAAAAAAAA"},
        "an end that is over": {"exp": now - 1},
        "an end in a text": {"exp": str(now + 600)},
        "a beginning to come": {"nbf": now + 3600},
    }
    wrong_headers = {
        "another type": {"typ": "JWT"},
        "no type": {"typ": None},
        "an unknown key": {"kid": "unknown"},
        "a key of its own": {"jwk": {"kty": "OKP", "crv": "Ed25519", "x": "QypF9oOa07gKWPY3ZUqK1UwvKEHNGCMnB1zn1McIWV8"}},
    }

    def changed(values, change):
        return {name: value for name, value in {**values, **change}.items() if value is not None}

    signers = {
        "PyJWT": signed_by_pyjwt,
        "joserfc": signed_by_joserfc,
        "jose": lambda jwk, header, claims: jose.ask("sign", jwk=jwk, header=header, claims=claims)["token"],
    }
    for library, sign in signers.items():
        own = {**claims, "jti": f"from {library}"}
        check(f"{algorithm} of {library} is taken", node.accepts(sign(plain, header, own)))
        refused = [
            what for what, change in wrong_claims.items() if not node.accepts(sign(plain, header, changed(own, change)))
        ]
        check(f"{algorithm} of {library} with wrong claims is refused", refused, list(wrong_claims))
    # What the libraries would not put into a header themselves goes through joserfc, or by hand.
    for what, change in wrong_headers.items():
        token = jose.ask("sign", jwk=plain, header=changed(header, change), claims=claims).get("token")
        check(f"{algorithm} with {what} is refused", node.accepts(token), False)


def eddsa(state, jose):
    """Ours in theirs, theirs in ours, and a rotation under a verifier's eyes."""
    file = pathlib.Path(state) / "keys.json"
    file.write_text(keygen("signing"))
    first = json.loads(file.read_text())["keys"][0]
    node = Node(state, file)
    jose.ask("at", url=node.url)
    token = node.token()
    subject = jwt.decode(token, options={"verify_signature": False})["sub"]
    check("PyJWT verifies ours", by_pyjwt(node, token)["sub"], subject)
    check("joserfc verifies ours", by_joserfc(node.keys(), token)["sub"], subject)
    check("jose verifies ours", jose.verify("usual", token), first["kid"])
    check("it has fetched the keys once", jose.fetches, 1)
    check("joserfc computes our kid", joserfc_jwk.OKPKey.import_key(first).thumbprint(), first["kid"])
    check("nothing private is published", [sorted(key) for key in node.keys()["keys"]], [["alg", "crv", "kid", "kty", "use", "x"]])
    theirs(node, jose, first, "EdDSA")
    confused = jwt.encode(jwt.decode(token, options={"verify_signature": False}), first["x"], "HS256", {"typ": "at+jwt", "kid": first["kid"]})
    check("the public key as a MAC key is refused", node.accepts(confused), False)

    status, headers, _ = http(f"{node.url}/.well-known/jwks.json")
    check("the keys may be kept for 300 s", (status, headers["cache-control"]), (200, "public, max-age=300"))
    again = http(f"{node.url}/.well-known/jwks.json", headers={"if-none-match": headers["etag"]})
    check("and asked for again", (again[0], again[2], again[1]["etag"]), (304, b"", headers["etag"]))
    metadata = json.loads(http(f"{node.url}/.well-known/oauth-authorization-server")[2])
    check("the metadata is the issuer's", (metadata["issuer"], metadata["jwks_uri"]), (ISSUER, f"{ISSUER}/.well-known/jwks.json"))

    # next: published, not signing. The verifier still has the old set, and needs no other.
    node.stop()
    keygen("rotate", file)
    node = Node(state, file)
    jose.ask("at", url=node.url)
    second = node.kids()[1]
    check("a next key is published beside the current one", node.kids(), [first["kid"], second])
    check("with the old set, jose verifies what is signed now", jose.verify("usual", node.token()), first["kid"])
    check("without a fetch", jose.fetches, 1)
    check("a token from before the restart is still good", node.accepts(token))
    jose.ask("expire", which="usual")
    check("within 300 s of this, every verifier has both", jose.fetches, 2)

    # current: signing. Nobody sees an unknown kid, and what was signed before is good.
    node.stop()
    keygen("rotate", file)
    node = Node(state, file)
    jose.ask("at", url=node.url)
    newer = node.token()
    check("jose verifies the new key's token from its cached set", jose.verify("usual", newer), second)
    check("and the old key's", jose.verify("usual", token), first["kid"])
    check("without a fetch", jose.fetches, 2)
    check("PyJWT verifies both", {by_pyjwt(node, each)["sub"] for each in (token, newer)}, {subject})
    check("joserfc verifies both", {by_joserfc(node.keys(), each)["sub"] for each in (token, newer)}, {subject})
    check("the node accepts both", (node.accepts(token), node.accepts(newer)), (True, True))

    # previous: gone.
    node.stop()
    keygen("rotate", file)
    node = Node(state, file)
    jose.ask("at", url=node.url)
    check("the old key is gone", node.kids(), [second])
    check("the node refuses its tokens at once", node.accepts(token), False)
    check("jose goes on with the new key", jose.verify("usual", newer), second)
    jose.ask("expire", which="usual")
    check("and refuses the old one once it has asked", jose.verify("usual", token), "ERR_JWKS_NO_MATCHING_KEY")

    # An emergency: one key in the place of another, with no time to publish it first.
    node.stop()
    file.write_text(keygen("signing"))
    node = Node(state, file)
    jose.ask("at", url=node.url)
    third = node.kids()[0]
    emergency = node.token()
    check("the dropped key's tokens are refused", node.accepts(newer), False)
    before = jose.fetches
    seen = {jose.verify("usual", emergency) for _ in range(50)}
    check("a verifier that has just asked does not ask for each unknown kid", (seen, jose.fetches), ({"ERR_JWKS_NO_MATCHING_KEY"}, before))
    check("and knows the new key when it may ask", jose.verify("eager", emergency), third)
    node.stop()


def hs256(state, jose):
    """A MAC key is shared with one service and published to none."""
    file = pathlib.Path(state) / "keys.json"
    file.write_text(keygen("signing", "--alg", "HS256"))
    key = json.loads(file.read_text())["keys"][0]
    node = Node(state, file, component="edgepass.wasm")
    check("no MAC key is published", node.keys(), {"keys": []})
    token = node.token()
    subject = jwt.decode(token, options={"verify_signature": False})["sub"]
    secret = jwt.utils.base64url_decode(key["k"])
    check("PyJWT verifies ours with the shared key", by_pyjwt(node, token, secret, "HS256")["sub"], subject)
    check("joserfc does, too", by_joserfc({"keys": [key]}, token, "HS256")["sub"], subject)
    theirs(node, jose, key, "HS256")
    node.stop()


def ed25519(state):
    """The newer name of the same algorithm, through the other door."""
    file = pathlib.Path(state) / "keys.json"
    file.write_text(keygen("signing", "--alg", "Ed25519"))
    node = Node(state, file, component="edgepass.wasm")
    token = node.token()
    check("the token says Ed25519", jwt.get_unverified_header(token)["alg"], "Ed25519")
    check("joserfc verifies it", by_joserfc(node.keys(), token, "Ed25519")["client_id"], "wechat")
    node.stop()


def main():
    jose = Jose()
    for part in (lambda state: eddsa(state, jose), lambda state: hs256(state, jose), ed25519):
        with tempfile.TemporaryDirectory() as state:
            part(state)
    jose.stop()
    print(f"interop: {passed} passed, 0 failed")


main()
