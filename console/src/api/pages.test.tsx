import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { act, renderHook, waitFor } from "@testing-library/react";
import type { ReactNode } from "react";
import { describe, expect, it } from "vitest";
import { usePages } from "./pages";

type Page = { numbers: number[]; next: string };
const rowsOf = (page: Page) => page.numbers;

/** A log whose newest entry has the number `newest`, read two at a time. */
function begin(maxPages: number) {
  const log = { newest: 1_000, reads: [] as string[] };
  const queries = new QueryClient({ defaultOptions: { queries: { staleTime: 1e9, retry: false } } });
  const read = async (cursor: string): Promise<Page> => {
    log.reads.push(cursor);
    const start = cursor ? Number(cursor) : log.newest;
    return { numbers: [start, start - 1], next: String(start - 2) };
  };
  const wrapper = ({ children }: { children: ReactNode }) => <QueryClientProvider client={queries}>{children}</QueryClientProvider>;
  const hook = renderHook(({ filter }) => usePages({ queryKey: ["log", filter], read, first: "", next: (page) => page.next, rowsOf, maxPages, keepsRows: true }), { wrapper, initialProps: { filter: "" } });
  const readMore = async () => {
    const before = hook.result.current.rows.length;
    act(() => hook.result.current.readMore());
    await waitFor(() => expect(hook.result.current.rows.length).toBeGreaterThan(before));
  };
  const hint = () => act(() => queries.invalidateQueries({ queryKey: ["log"] }));
  return { log, hook, readMore, hint, found: () => hook.result.current };
}

describe("usePages", () => {
  it("ends after its last page, keeps the newest rows and says that there are more", async () => {
    const { log, found, readMore, hint } = begin(3);
    await waitFor(() => expect(found().rows).toHaveLength(2));
    expect([found().hasMore, found().isCut]).toEqual([true, false]);
    await readMore();
    await readMore();
    expect([found().hasMore, found().isCut]).toEqual([false, true]);
    expect(found().rows).toEqual([1000, 999, 998, 997, 996, 995]);
    const reads = log.reads.length;
    act(() => found().readMore());
    expect(log.reads).toHaveLength(reads);
    log.newest = 1_001;
    await hint();
    await waitFor(() => expect(found().rows[0]).toBe(1_001));
    expect(found().rows).toHaveLength(6);
  });

  it("is not read again while the reader is far down, and is current at the top", async () => {
    const { log, found, readMore, hint } = begin(Infinity);
    await waitFor(() => expect(found().rows).toHaveLength(2));
    for (let page = 0; page < 4; page++) await readMore();
    const before = log.reads.length;
    act(() => found().setAtTop(false));
    log.newest = 1_001;
    await hint();
    expect(log.reads).toHaveLength(before);
    await readMore();
    expect(found().rows).toHaveLength(12);
    act(() => found().setAtTop(true));
    await waitFor(() => expect(found().rows[0]).toBe(1_001));
  });

  it("shows the rows of the last filter until those of the new one are there", async () => {
    const { hook, found } = begin(Infinity);
    await waitFor(() => expect(found().rows).toHaveLength(2));
    act(() => found().setAtTop(false));
    hook.rerender({ filter: "new" });
    expect([found().rows.length, found().isOld, found().hasMore]).toEqual([2, true, false]);
    await waitFor(() => expect(found().isOld).toBe(false));
  });

  it("gives the same rows at each drawing", async () => {
    const { hook, found } = begin(Infinity);
    await waitFor(() => expect(found().rows).toHaveLength(2));
    const rows = found().rows;
    hook.rerender({ filter: "" });
    expect(found().rows).toBe(rows);
  });
});
