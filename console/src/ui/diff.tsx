// The difference of two texts by lines, for tool definitions and rewritten turns.
import { json, visible } from "./text";

type Line = { kind: "same" | "added" | "removed" | "skipped"; text: string };

const MAX_LINES = 2_000;
const CONTEXT = 3;

/** Return the lines of both texts in order, by their longest common subsequence. */
export function diffLines(before: string, after: string): Line[] {
  const a = before.split("\n").slice(0, MAX_LINES);
  const b = after.split("\n").slice(0, MAX_LINES);
  const lengths = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      lengths[i]![j] = a[i] === b[j] ? lengths[i + 1]![j + 1]! + 1 : Math.max(lengths[i + 1]![j]!, lengths[i]![j + 1]!);
  const lines: Line[] = [];
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      lines.push({ kind: "same", text: a[i]! });
      i++;
      j++;
    } else if (j >= b.length || (i < a.length && lengths[i + 1]![j]! >= lengths[i]![j + 1]!)) {
      lines.push({ kind: "removed", text: a[i++]! });
    } else {
      lines.push({ kind: "added", text: b[j++]! });
    }
  }
  return fold(lines);
}

function fold(lines: Line[]): Line[] {
  const near = (index: number) =>
    lines.slice(Math.max(0, index - CONTEXT), index + CONTEXT + 1).some((each) => each.kind !== "same");
  const folded: Line[] = [];
  let skipped = 0;
  const close = () => {
    if (skipped) folded.push({ kind: "skipped", text: `${skipped} equal lines` });
    skipped = 0;
  };
  lines.forEach((line, index) => {
    if (line.kind === "same" && !near(index)) {
      skipped++;
      return;
    }
    close();
    folded.push(line);
  });
  close();
  return folded;
}

const MARKS = { same: " ", added: "+", removed: "−", skipped: "⋯" };
const SPOKEN = { same: "", added: "added: ", removed: "removed: ", skipped: "" };

export function Diff({ before, after, label }: { before: unknown; after: unknown; label: string }) {
  const [one, other] = [before, after].map((each) => (typeof each === "string" ? visible(each) : json(each)));
  return (
    <div className="diff" role="region" aria-label={label} tabIndex={0}>
      {diffLines(one!, other!).map((line, index) => (
        <div key={index} className={line.kind}>
          <span aria-hidden="true">{MARKS[line.kind]}</span>
          <span>
            {SPOKEN[line.kind] && <span className="hidden-visually">{SPOKEN[line.kind]}</span>}
            {line.text}
          </span>
        </div>
      ))}
    </div>
  );
}
