// Browser notifications of new approval requests, by consent. With Web Push they also arrive while
// the console is closed, if the operator has configured a notifier of that kind.
import { useEffect, useState } from "react";
import { useLive } from "../api/live";
import { areNotificationsOn, showNotification, switchNotificationsOff, switchNotificationsOn } from "../push";

const isSupported = "Notification" in window && "serviceWorker" in navigator;

export function NotificationSwitch() {
  const [isOn, setOn] = useState(() => isSupported && Notification.permission === "granted" && areNotificationsOn());
  const { listen } = useLive();
  useEffect(() => {
    if (!isOn) return;
    return listen((hint) => {
      if (hint.topic !== "approvals" || !document.hidden) return;
      // The text names nothing of the request: it may appear on a locked screen.
      void showNotification("An approval request has changed.").catch(() => undefined);
    });
  }, [isOn, listen]);
  if (!isSupported) return null;
  const toggle = async () => {
    if (isOn) {
      setOn(false);
      await switchNotificationsOff();
      return;
    }
    if ((await Notification.requestPermission()) !== "granted") return;
    setOn(true);
    await switchNotificationsOn().catch(() => undefined);
  };
  return (
    <button type="button" className="button" aria-pressed={isOn} onClick={() => void toggle()}>
      {isOn ? "Notifications on" : "Notify me"}
    </button>
  );
}
