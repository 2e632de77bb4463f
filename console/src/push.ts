// Notifications of this browser: whether they are on, and its Web Push subscription at the gateway.
import { api, data } from "./api/client";

const SWITCH = "comity.notify";
const SUBSCRIPTION = "comity.push";
const SCOPE = "/console/";

export const areNotificationsOn = () => localStorage.getItem(SWITCH) === "on";

/** Switch notifications on, with Web Push if the gateway has a notifier for it. */
export async function switchNotificationsOn() {
  localStorage.setItem(SWITCH, "on");
  if (!("serviceWorker" in navigator)) return;
  const worker = await registerWorker();
  const { public_key: key } = await data(api.GET("/api/push-subscriptions"));
  if (!key) return;
  const made = await worker.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: key });
  const { endpoint, keys } = made.toJSON();
  if (!endpoint || !keys?.p256dh || !keys.auth) return;
  const { id } = await data(api.POST("/api/push-subscriptions", { body: { endpoint, keys: { p256dh: keys.p256dh, auth: keys.auth } } }));
  localStorage.setItem(SUBSCRIPTION, id);
}

const WORKER = "/console/worker.js";

type TrustedTypes = { createPolicy(name: string, rules: { createScriptURL: () => string }): { createScriptURL(text: string): string } };

// With trusted types, a browser registers no worker by a plain text. The policy knows this address only. It is dropped
// here: no code can call it later, and the browser refuses a second policy of the name.
const trustedTypes = (window as unknown as { trustedTypes?: TrustedTypes }).trustedTypes;
const workerAddress = trustedTypes?.createPolicy("comity-worker", { createScriptURL: () => WORKER }).createScriptURL("") ?? WORKER;

const registerWorker = () => navigator.serviceWorker.register(workerAddress, { scope: SCOPE });

/** Show a notification through the worker: browsers of phones refuse it from the page. */
export async function showNotification(body: string) {
  await registerWorker();
  const worker = await navigator.serviceWorker.ready;
  await worker.showNotification("Comity", { body, tag: "comity-approvals", icon: "/console/icon.svg" });
}

/** Switch notifications off, in this browser and at the gateway. One works without the other. */
export async function switchNotificationsOff() {
  localStorage.setItem(SWITCH, "off");
  await Promise.allSettled([unsubscribeBrowser(), deleteAtGateway()]);
}

async function unsubscribeBrowser() {
  if (!("serviceWorker" in navigator)) return;
  const worker = await navigator.serviceWorker.getRegistration(SCOPE);
  const subscription = await worker?.pushManager.getSubscription();
  await subscription?.unsubscribe();
}

async function deleteAtGateway() {
  const id = localStorage.getItem(SUBSCRIPTION);
  if (!id) return;
  await data(api.POST("/api/push-subscriptions/delete", { body: { id } }));
  localStorage.removeItem(SUBSCRIPTION);
}
