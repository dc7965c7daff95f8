// A browser that is told what to do, a line of JSON each: {"open": url, "password": token, "scheme": "dark"}, {"until": text}, {"picture": path}.
// Each is answered by a line of JSON: the page's text, and what its console has complained of so far.
import { createInterface } from "node:readline";
import { tmpdir } from "node:os";
import chromium from "@sparticuz/chromium";
import puppeteer from "puppeteer-core";

const WITHIN = 60000;
const complaints = [];
const browser = await puppeteer.launch({
  args: [...chromium.args, "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  executablePath: await chromium.executablePath(),
  acceptInsecureCerts: true, // the certificate is checked by another test
  headless: "shell",
  userDataDir: `${tmpdir()}/browser-${process.pid}`,
});
const page = await browser.newPage();
page.setDefaultTimeout(WITHIN);
page.on("pageerror", error => complaints.push(String(error)));
page.on("console", message => { if (message.type() === "error") complaints.push(message.text()); });

for await (const line of createInterface({ input: process.stdin })) {
  const told = JSON.parse(line);
  if (told.open) {
    if (told.scheme) await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: told.scheme }]);
    await page.setViewport({ width: told.width ?? 1280, height: 900 });
    if (told.password) await page.authenticate({ username: "", password: told.password });
    await page.goto(told.open);
  }
  if (told.until) await page.waitForFunction(text => document.body.innerText.includes(text), {}, told.until);
  if (told.picture) await page.screenshot({ path: told.picture, fullPage: true });
  const wider = await page.evaluate(() => document.documentElement.scrollWidth > document.documentElement.clientWidth);
  console.log(JSON.stringify({ text: await page.evaluate(() => document.body.innerText), complaints, wider }));
}
await browser.close();
