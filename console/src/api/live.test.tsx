import { QueryClient, QueryClientProvider, useQuery } from "@tanstack/react-query";
import { act, render, screen } from "@testing-library/react";
import { useEffect } from "react";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { LiveProvider, useLive } from "./live";

class FakeEventSource extends EventTarget {
  static readonly CLOSED = 2;
  static made: FakeEventSource[] = [];
  readyState = 0;
  onopen: () => void = () => {};
  onerror: () => void = () => {};
  onmessage: (event: MessageEvent<string>) => void = () => {};
  constructor() {
    super();
    FakeEventSource.made.push(this);
  }
  close() {
    this.readyState = 2;
  }
  fail(readyState: number) {
    this.readyState = readyState;
    this.onerror();
  }
}

const reads = { servers: 0, session: 0 };

function Reader() {
  const { connection, setPaused, listen } = useLive();
  useEffect(
    () =>
      listen(() => {
        throw new TypeError("Illegal constructor");
      }),
    [listen],
  );
  useQuery({ queryKey: ["servers"], queryFn: async () => ++reads.servers });
  useQuery({ queryKey: ["session"], queryFn: async () => ++reads.session });
  return (
    <>
      <output>{connection}</output>
      <button type="button" onClick={() => setPaused(connection !== "paused")}>
        pause
      </button>
    </>
  );
}

const wait = (milliseconds: number) => act(() => vi.advanceTimersByTimeAsync(milliseconds));
const last = () => FakeEventSource.made.at(-1)!;
const state = () => screen.getByRole("status").textContent;

describe("the event stream", () => {
  beforeEach(async () => {
    vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "performance"] });
    vi.stubGlobal("EventSource", FakeEventSource);
    FakeEventSource.made = [];
    Object.assign(reads, { servers: 0, session: 0 });
    const queries = new QueryClient({ defaultOptions: { queries: { staleTime: 1e9 } } });
    render(
      <QueryClientProvider client={queries}>
        <LiveProvider>
          <Reader />
        </LiveProvider>
      </QueryClientProvider>,
    );
    await wait(1_000);
  });
  afterEach(() => {
    vi.useRealTimers();
    vi.unstubAllGlobals();
  });

  it("reads everything again when it opens, because earlier hints are lost", async () => {
    expect(reads).toEqual({ servers: 1, session: 1 });
    act(() => last().onopen());
    await wait(1_500);
    expect(state()).toBe("live");
    expect(reads).toEqual({ servers: 2, session: 2 });
    // The browser reconnects by itself after a lost connection.
    act(() => last().fail(0));
    expect(state()).toBe("lost");
    act(() => last().onopen());
    await wait(1_500);
    expect(reads.servers).toBe(3);
    expect(FakeEventSource.made).toHaveLength(1);
  });

  it("reads a topic again although a listener of its hints throws", async () => {
    const report = vi.fn();
    vi.stubGlobal("reportError", report);
    act(() => last().onmessage(new MessageEvent("message", { data: '{"topic":"tools"}' })));
    await wait(1_500);
    // A changed tool also changes what the lists of servers count.
    expect(reads.servers).toBe(2);
    expect(report).toHaveBeenCalledOnce();
  });

  it("is opened again after a refusal, which the browser does not try again", async () => {
    act(() => last().fail(2));
    expect(state()).toBe("lost");
    await wait(1_900);
    expect(FakeEventSource.made).toHaveLength(1);
    // With ended credentials, this answer leads to the sign-in.
    expect(reads).toEqual({ servers: 1, session: 2 });
    await wait(3_200);
    expect(FakeEventSource.made).toHaveLength(2);
    act(() => last().onopen());
    await wait(1_500);
    expect(state()).toBe("live");
    expect(reads.servers).toBe(2);
  });

  it("reads the session when the gateway ends it, and comes back slowly", async () => {
    act(() => void last().dispatchEvent(new Event("end")));
    await wait(0);
    expect([state(), reads.session, last().readyState]).toEqual(["lost", 2, 2]);
    await wait(1_900);
    expect(FakeEventSource.made).toHaveLength(1);
    await wait(3_200);
    expect(FakeEventSource.made).toHaveLength(2);
  });

  it("reads everything again after a pause, and opens nothing while paused", async () => {
    act(() => last().fail(2));
    act(() => screen.getByRole("button").click());
    await wait(10_000);
    expect([state(), FakeEventSource.made.length]).toEqual(["paused", 1]);
    act(() => screen.getByRole("button").click());
    expect([state(), FakeEventSource.made.length]).toEqual(["connecting", 2]);
    act(() => last().onopen());
    await wait(1_500);
    expect(reads.servers).toBe(2);
  });
});
