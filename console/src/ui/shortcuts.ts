// Whether single keys are shortcuts, as this browser remembers it.
const KEY = "comity.shortcuts";

export const areShortcutsOn = () => localStorage.getItem(KEY) !== "off";
export const switchShortcuts = (on: boolean) => localStorage.setItem(KEY, on ? "on" : "off");
