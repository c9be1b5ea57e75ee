// A service that verifies with jose's createRemoteJWKSet, as its documentation shows it, and signs.
// It reads one JSON request per line and answers with one: the process, and with it the cached key
// set, lives on while the node is restarted with other keys.
import { createInterface } from "node:readline";
import { SignJWT, createRemoteJWKSet, customFetch, importJWK, jwtVerify } from "jose";

let base;
let fetches = 0;

// The node has another port after a restart; the set that was fetched is what counts.
const fetchFromNode = (url, options) => {
  fetches += 1;
  return fetch(new URL(new URL(url).pathname, base), options);
};

const verifier = (options) =>
  createRemoteJWKSet(new URL("http://login.example/.well-known/jwks.json"), {
    ...options,
    [customFetch]: fetchFromNode,
  });

// "usual" has jose's own cooldown of 30 s and its cache of 10 min; "eager" may ask again at once.
const verifiers = { usual: verifier({}), eager: verifier({ cooldownDuration: 0 }) };

const commands = {
  async at({ url }) {
    base = url;
    return {};
  },
  // As when the cached set has reached its age.
  async expire({ which }) {
    await verifiers[which].reload();
    return {};
  },
  async verify({ which, token, issuer, audience }) {
    const { payload, protectedHeader } = await jwtVerify(token, verifiers[which], {
      issuer,
      audience,
      typ: "at+jwt",
      algorithms: ["EdDSA"],
      requiredClaims: ["sub", "client_id", "sid", "iat", "exp", "jti"],
    });
    return { sub: payload.sub, kid: protectedHeader.kid };
  },
  async sign({ jwk, header, claims }) {
    const token = await new SignJWT(claims).setProtectedHeader(header).sign(await importJWK(jwk, header.alg));
    return { token };
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  let answer;
  try {
    answer = await commands[request.do](request);
  } catch (error) {
    answer = { error: error.code ?? String(error) };
  }
  console.log(JSON.stringify({ ...answer, fetches }));
}
