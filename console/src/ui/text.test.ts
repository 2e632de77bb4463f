import { describe, expect, it } from "vitest";
import { ago, brief, duration, visible } from "./text";

describe("visible", () => {
  it("shows characters that hide or reorder text", () => {
    expect(visible("pay\u202Eexe.txt")).toBe("pay⟨U+202E⟩exe.txt");
    expect(visible("a\u200Bb\uFEFFc")).toBe("a⟨U+200B⟩b⟨U+FEFF⟩c");
    expect(visible("tag\u{E0041}")).toBe("tag⟨U+E0041⟩");
    expect(visible("bell\u0007")).toBe("bell⟨U+0007⟩");
  });
  it("leaves ordinary text of any script alone", () => {
    const text = "Grüße, 你好, שלום, line\nbreak\ttab <b>&amp;</b>";
    expect(visible(text)).toBe(text);
  });
});

describe("brief", () => {
  it("takes the first line and shortens it", () => {
    expect(brief("one\ntwo")).toBe("one");
    expect(brief("x".repeat(300), 10)).toBe(`${"x".repeat(9)}…`);
    expect(brief(null)).toBe("");
  });
});

describe("times", () => {
  it("says moments as people do", () => {
    expect(ago(0, 5_000)).toBe("5 sec. ago");
    expect(ago(7_200_000, 0)).toBe("in 2 hr.");
    expect(duration(0)).toBe("0 ms");
    expect(duration(0.5)).toBe("0.50 ms");
    expect(duration(1_500)).toBe("1.5 s");
    expect(duration(90_000)).toBe("1 min 30 s");
    expect(duration(null)).toBe("–");
  });
  it.each([
    [999.7, "1.0 s"],
    [59_960, "1 min 0 s"],
    [119_600, "2 min 0 s"],
    [3_599_700, "1 h 0 min"],
    [21_595_000, "6 h 0 min"],
    [21_540_000, "5 h 59 min"],
  ])("never has as much of a unit as the next one has", (ms, text) => {
    expect(duration(ms)).toBe(text);
  });
});
