import { describe, expect, it } from "vitest";
import type { Schemas } from "../api/client";
import { indents } from "./live";
import { threaded } from "./topics";

type Envelope = Schemas["EnvelopeView"];

const envelope = (number: number, id: string, correlation_id: string | null = null): Envelope => ({ number, id, correlation_id, sender: "agent:a", to: [], kind: "chat", ts: "", payload: {}, bytes: 2 });
const ids = (envelopes: Envelope[]) => threaded(envelopes).map((thread) => thread.map((each) => each.id));

describe("threaded", () => {
  it("puts a reply to a reply into the thread of the first message", () => {
    expect(ids([envelope(4, "other"), envelope(3, "result", "request"), envelope(2, "request", "proposal"), envelope(1, "proposal")])).toEqual([["other"], ["proposal", "request", "result"]]);
  });
  it("puts the first message first if a reply arrived before it", () => {
    expect(ids([envelope(2, "question"), envelope(1, "reply", "question")])).toEqual([["question", "reply"]]);
  });
  it("keeps a reply to an unknown message and ends in a circle", () => {
    expect(ids([envelope(1, "reply", "gone")])).toEqual([["reply"]]);
    expect(ids([envelope(2, "b", "a"), envelope(1, "a", "b")]).flat().sort()).toEqual(["a", "b"]);
  });
});

describe("indents", () => {
  it("moves a second branch to the right", () => {
    const node = (checkpoint: string, follows: string | null) => ({ checkpoint, follows }) as Schemas["TreeNodeView"];
    const found = indents([node("1", null), node("2", "1"), node("3", "2"), node("4", "1"), node("5", "4")]);
    expect([...found.values()]).toEqual([0, 0, 0, 1, 1]);
  });
});
