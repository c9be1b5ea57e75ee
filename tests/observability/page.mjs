// The status page in a headless Chromium: the token, the figures, a swap, the way back; and no
// request that leaves the node.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { chromium } from "playwright-core";

const [admin, tokenFile, component, work] = process.argv.slice(2);
const token = readFileSync(tokenFile, "utf8").trim();
const args = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", headless: true, chromiumSandbox: false, args });
let passed = 0;
const ok = (name) => { passed += 1; console.log(`  ok  ${name}`); };

const open = async (options, path = "/") => {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  page.asked = [];
  page.complaints = [];
  page.on("request", (request) => page.asked.push(request.url()));
  page.on("pageerror", (error) => page.complaints.push(String(error)));
  page.on("console", (line) => line.type() === "error" && !/40[01]/.test(line.text()) && page.complaints.push(line.text()));
  await page.goto(`${admin}${path}`);
  return page;
};
const enter = async (page, text) => {
  await page.getByLabel("Token").fill(text);
  await page.getByRole("button", { name: "Open" }).click();
};
const status = async () => (await fetch(`${admin}/status`, { headers: { authorization: `Bearer ${token}` } })).json();

try {
  const page = await open({ viewport: { width: 1100, height: 1400 }, colorScheme: "light" });
  await enter(page, "not-the-token");
  await page.getByRole("alert").filter({ hasText: "does not take this token" }).waitFor();
  assert.equal(await page.locator("#desk").isVisible(), false);
  ok("a wrong token opens nothing and is told what is wanted");

  await enter(page, token);
  await page.locator("#active").waitFor();
  const before = (await status()).revisions.active.digest;
  assert.equal(await page.locator("#active").getAttribute("title"), before);
  assert.match(await page.locator('[data-operation="login"]').innerText(), /platform/);
  const drawn = await page.locator('[data-operation="login"] svg').first().getAttribute("aria-label");
  assert.match(drawn, /median [\d.]+ (µs|ms)/);
  ok("the token opens the page: active revision, latencies by stage");
  await page.screenshot({ path: `${work}/light.png`, fullPage: true });

  const revisions = await fetch(`${admin}/revisions`, { headers: { authorization: `Bearer ${token}` } });
  if (revisions.status !== 404) {
    await page.locator("#file").setInputFiles(component);
    await page.getByRole("button", { name: "Leave it" }).click();
    assert.equal((await status()).revisions.active.digest, before);
    ok("a swap that is not confirmed does nothing");
    await page.locator("#file").setInputFiles(component);
    await page.getByRole("button", { name: "Swap", exact: true }).click();
    await page.locator("#done").filter({ hasText: "is active" }).waitFor({ timeout: 120_000 });
    const after = (await status()).revisions.active.digest;
    assert.notEqual(after, before);
    await page.locator(`#active[title="${after}"]`).waitFor();
    ok("a file is swapped in and its digest shown");
    await page.getByRole("button", { name: "Roll back…" }).click();
    await page.getByRole("button", { name: "Roll back", exact: true }).click();
    await page.locator(`#active[title="${before}"]`).waitFor({ timeout: 60_000 });
    assert.equal((await status()).revisions.active.digest, before);
    ok("and rolled back");
  }

  const phone = await open({ viewport: { width: 390, height: 844 }, colorScheme: "dark", isMobile: true }, `/#token=${token}`);
  await phone.locator("#active").waitFor();
  assert.equal(new URL(phone.url()).hash, "");
  const wide = await phone.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
  assert.ok(wide <= 0, `${wide} px wider than the phone`);
  await phone.locator("summary").click();
  await phone.locator("#lines li").first().waitFor();
  await phone.screenshot({ path: `${work}/dark.png`, fullPage: true });
  ok("on a phone, in the dark, with the token of the address, which is then gone from it");

  for (const seen of [page, phone]) {
    assert.deepEqual(seen.asked.filter((url) => !url.startsWith(admin)), []);
    assert.deepEqual(seen.complaints, []);
    const kept = await seen.evaluate(() => [localStorage.length, sessionStorage.length, document.cookie]);
    assert.deepEqual(kept, [0, 0, ""]);
    const names = await seen.evaluate(() => [...document.querySelectorAll("button, input, summary")]
      .filter((one) => one.checkVisibility() && !(one.textContent || one.labels?.length || one.ariaLabel)).map((one) => one.id));
    assert.deepEqual(names, [], "everything that can be used has a name");
  }
  ok("no request leaves the node, nothing is kept, no error, every control has a name");
  console.log(`page: ${passed} checks`);
} finally {
  await browser.close();
}
