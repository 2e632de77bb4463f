// When the queries of a topic are read again: soon after a hint, and never in a row without a pause.

const FIRST_DELAY_MS = 250;
const LEAST_PAUSE_MS = 1_000;
/** A pause lasts this many times as long as the reading before it. */
const PAUSE_FACTOR = 4;

/**
 * Reads a topic again after its hints.
 *
 * A list with many pages takes long to read. A new reading would cancel the one before, and a steady
 * flow of hints would keep the browser and the gateway busy. So each topic has one reading at a time,
 * and a long reading has a long pause after it.
 */
export class TopicRefresher {
  private readonly hinted = new Set<string>();
  private readonly busy = new Set<string>();
  private isStopped = false;

  constructor(private readonly read: (topic: string) => Promise<void>) {}

  add(topic: string): void {
    this.hinted.add(topic);
    if (!this.busy.has(topic)) void this.run(topic);
  }

  stop(): void {
    this.isStopped = true;
  }

  private async run(topic: string): Promise<void> {
    this.busy.add(topic);
    // A burst of hints causes one reading.
    await pause(FIRST_DELAY_MS);
    while (!this.isStopped && this.hinted.delete(topic)) {
      const start = performance.now();
      await this.read(topic);
      await pause(Math.max(LEAST_PAUSE_MS, PAUSE_FACTOR * (performance.now() - start)));
    }
    this.busy.delete(topic);
  }
}

const pause = (milliseconds: number) => new Promise<void>((done) => setTimeout(done, milliseconds));
