// Browser notifications of new approval requests, by consent. With Web Push they also arrive while
// the console is closed, if the operator has configured a notifier of that kind.
import { useEffect, useState } from "react";
import { api, data } from "../api/client";
import { useLive } from "../api/live";

const KEY = "comity.notify";
const isSupported = "Notification" in window;

export function NotificationSwitch() {
  const [isOn, setOn] = useState(() => isSupported && Notification.permission === "granted" && localStorage.getItem(KEY) === "on");
  const { listen } = useLive();
  useEffect(() => {
    if (!isOn) return;
    return listen((hint) => {
      if (hint.topic !== "approvals" || !document.hidden) return;
      // The text names nothing of the request: it may appear on a locked screen.
      new Notification("Comity", { body: "An approval request has changed.", tag: "comity-approvals", icon: "/console/icon.svg" });
    });
  }, [isOn, listen]);
  if (!isSupported) return null;
  const toggle = async () => {
    if (isOn) {
      localStorage.setItem(KEY, "off");
      setOn(false);
      return;
    }
    if ((await Notification.requestPermission()) !== "granted") return;
    localStorage.setItem(KEY, "on");
    setOn(true);
    await subscribe().catch(() => undefined);
  };
  return (
    <button type="button" className="button" aria-pressed={isOn} onClick={() => void toggle()}>
      {isOn ? "Notifications on" : "Notify me"}
    </button>
  );
}

/** Subscribe this browser to Web Push. Without a notifier for it, there is nothing to do. */
async function subscribe() {
  if (!("serviceWorker" in navigator)) return;
  const { public_key: key } = await data(api.GET("/api/push-subscriptions"));
  if (!key) return;
  const worker = await navigator.serviceWorker.register("/console/worker.js", { scope: "/console/" });
  const made = await worker.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: key });
  const { endpoint, keys } = made.toJSON();
  if (endpoint && keys?.p256dh && keys.auth) await data(api.POST("/api/push-subscriptions", { body: { endpoint, keys: { p256dh: keys.p256dh, auth: keys.auth } } }));
}
