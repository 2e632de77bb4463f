import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { TopicRefresher } from "./refresh";

describe("the refresher of topics", () => {
  beforeEach(() => void vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "performance"] }));
  afterEach(() => void vi.useRealTimers());

  it("reads a topic once for a burst of hints", async () => {
    const read: string[] = [];
    const refresher = new TopicRefresher(async (topic) => void read.push(topic));
    for (let hint = 0; hint < 100; hint++) refresher.add("audit");
    refresher.add("servers");
    await vi.advanceTimersByTimeAsync(300);
    expect(read).toEqual(["audit", "servers"]);
    await vi.advanceTimersByTimeAsync(10_000);
    expect(read).toHaveLength(2);
  });

  it("reads a topic at most once a second, and reads after the last hint", async () => {
    const read: number[] = [];
    const refresher = new TopicRefresher(async () => void read.push(performance.now()));
    for (let step = 0; step < 100; step++) {
      refresher.add("servers");
      await vi.advanceTimersByTimeAsync(100);
    }
    const last = performance.now();
    await vi.advanceTimersByTimeAsync(5_000);
    expect(read.length).toBeGreaterThan(5);
    expect(read.length).toBeLessThanOrEqual(12);
    expect(read.at(-1)).toBeGreaterThanOrEqual(last - 100);
  });

  it("lets a slow reading end, and pauses longer after it", async () => {
    let running = 0;
    const read: number[] = [];
    const refresher = new TopicRefresher(async () => {
      read.push(performance.now());
      expect(++running).toBe(1);
      await new Promise((done) => setTimeout(done, 2_000));
      running--;
    });
    for (let step = 0; step < 210; step++) {
      refresher.add("tools");
      await vi.advanceTimersByTimeAsync(100);
    }
    expect(read).toHaveLength(3);
  });

  it("stops", async () => {
    const read = vi.fn(async () => {});
    const refresher = new TopicRefresher(read);
    refresher.add("audit");
    refresher.stop();
    await vi.advanceTimersByTimeAsync(5_000);
    expect(read).not.toHaveBeenCalled();
  });
});
