import { render, screen } from "@testing-library/react";
import { describe, expect, it } from "vitest";
import { Diff, diffLines } from "./diff";

describe("diffLines", () => {
  it("finds added and removed lines", () => {
    const lines = diffLines("a\nb\nc", "a\nx\nc");
    expect(lines.map((each) => `${each.kind} ${each.text}`)).toEqual(["same a", "removed b", "added x", "same c"]);
  });
  it("folds long equal parts", () => {
    const long = Array.from({ length: 50 }, (_, place) => `line ${place}`).join("\n");
    const lines = diffLines(long, `${long}\nnew`);
    expect(lines[0]).toEqual({ kind: "skipped", text: "47 equal lines" });
    expect(lines.at(-1)).toEqual({ kind: "added", text: "new" });
  });
  it("rebuilds both texts from its lines", () => {
    const [before, after] = ["a\nb\nc\nd", "b\nc\nx\nd\ny"];
    const lines = diffLines(before, after);
    const without = (kind: string) => lines.filter((each) => each.kind !== kind).map((each) => each.text).join("\n");
    expect(without("added")).toBe(before);
    expect(without("removed")).toBe(after);
  });
});

describe("Diff", () => {
  it("shows markup as text", () => {
    render(<Diff label="difference" before="" after="<img src=x onerror=alert(1)>" />);
    expect(screen.getByRole("region", { name: "difference" }).textContent).toContain("<img src=x");
    expect(document.querySelector("img")).toBeNull();
  });
});
