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
  const { public_key: key } = await data(api.GET("/api/push-subscriptions"));
  if (!key) return;
  const worker = await navigator.serviceWorker.register("/console/worker.js", { scope: SCOPE });
  const made = await worker.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: key });
  const { endpoint, keys } = made.toJSON();
  if (!endpoint || !keys?.p256dh || !keys.auth) return;
  const { id } = await data(api.POST("/api/push-subscriptions", { body: { endpoint, keys: { p256dh: keys.p256dh, auth: keys.auth } } }));
  localStorage.setItem(SUBSCRIPTION, id);
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
