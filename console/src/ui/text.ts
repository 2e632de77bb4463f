// Text of servers, agents and members is untrusted. React never reads it as HTML; these functions
// also show the characters that would hide or reorder it.

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb]|[\u{e0000}-\u{e0fff}]/gu;

/** Return a text in which invisible and reordering characters are visible. */
export function visible(text: string): string {
  return text.replace(HIDDEN, (found) => `⟨U+${found.codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

/** Return the first line of a text, shortened. */
export function brief(text: string | null | undefined, length = 160): string {
  const line = visible((text ?? "").trim().split("\n", 1)[0] ?? "");
  return line.length > length ? `${line.slice(0, length - 1)}…` : line;
}

/** Return a text that begins as a sentence does. */
export const sentence = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);

export function json(value: unknown): string {
  return visible(JSON.stringify(value, null, 2) ?? "");
}

const UNITS: [Intl.RelativeTimeFormatUnit, number][] = [
  ["day", 86_400],
  ["hour", 3_600],
  ["minute", 60],
  ["second", 1],
];
const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" });
const absolute = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

export function ago(at: number, now: number): string {
  const seconds = Math.round((at - now) / 1000);
  if (Math.abs(seconds) < 2) return "now";
  const [unit, size] = UNITS.find(([, each]) => Math.abs(seconds) >= each) ?? ["second", 1];
  return relative.format(Math.trunc(seconds / size), unit);
}

export const moment = (at: Date | number) => absolute.format(at);
export const clockTime = (at: Date | number) => clock.format(at);

export function duration(ms: number | null | undefined): string {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "–";
  if (ms === 0) return "0 ms";
  if (ms < 1) return `${ms.toFixed(2)} ms`;
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  if (ms < 59_950) return `${(ms / 1_000).toFixed(1)} s`;
  // The whole is rounded before it is split. A rounded rest could be as large as the next unit.
  const seconds = Math.round(ms / 1_000);
  if (seconds < 3_600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  const minutes = Math.round(ms / 60_000);
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

const plain = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
export const count = (value: number) => (value < 100_000 ? plain.format(value) : short.format(value));
