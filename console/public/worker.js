// Shows Web Push messages of Comity. It caches nothing and reads no data.
self.addEventListener("push", (event) => {
  let said = {};
  try {
    said = event.data ? event.data.json() : {};
  } catch {
    // A message that cannot be read is still shown, without its text.
  }
  const body = typeof said.text === "string" ? said.text.slice(0, 200) : "An approval request waits for you.";
  const id = typeof said.id === "string" ? said.id : "";
  event.waitUntil(self.registration.showNotification("Comity", { body, tag: id || "comity", icon: "/console/icon.svg", data: { id } }));
});

self.addEventListener("notificationclick", (event) => {
  event.notification.close();
  const id = event.notification.data?.id ?? "";
  event.waitUntil(self.clients.openWindow(`/console/approvals/${encodeURIComponent(id)}`));
});
