import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { createMemoryHistory, createRootRoute, createRoute, createRouter, RouterProvider } from "@tanstack/react-router";
import { act, render, screen } from "@testing-library/react";
import type { ReactNode } from "react";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { api, ApiError } from "../api/client";
import { Approvals } from "./approvals";
import { Audit } from "./audit";
import { NeedsYou } from "./needs-you";
import { Server } from "./server";
import { Servers } from "./servers";

type Answer = () => Promise<unknown>;

const get = vi.spyOn(api, "GET");
let queries: QueryClient;
/** What the gateway answers at each path. */
let answers: Record<string, Answer>;

const never: Answer = () => new Promise(() => {});
const refuse: Answer = () => Promise.reject(new ApiError("The gateway has too much to do.", 503));
const give = (data: unknown): Answer => async () => ({ data });

const DISKS = { id: "disks", label: "", state: "connected", reason: "", quarantined: {}, permissions: [], tools: 0, history: [] };
const COMMON = {
  "/api/servers/{server}": give(DISKS),
  "/api/config": give({ reload: { error: null } }),
  "/api/session": give({ principal: "person:ana", permissions: [] }),
  "/api/audit/verification": give({ state: "never", findings: [] }),
};

const SCREENS: { name: string; path: string; screen: () => ReactNode; reads: string; none: object; text: string }[] = [
  { name: "approvals inbox", path: "/approvals", screen: Approvals, reads: "/api/approvals", none: { approvals: [], total: 0 }, text: "Nothing waits for you." },
  { name: "list of servers", path: "/servers", screen: Servers, reads: "/api/servers", none: { servers: [], total: 0 }, text: "No servers yet." },
  { name: "audit log", path: "/audit", screen: Audit, reads: "/api/audit", none: { entries: [] }, text: "No entry fits these filters." },
  { name: "list of definitions", path: "/servers/disks?tab=review", screen: Server, reads: "/api/definitions", none: { tools: [] }, text: "Nothing is in quarantine." },
];

async function show(path: string, Screen: () => ReactNode) {
  const root = createRootRoute();
  // One screen at a time: the routes only give it its parameters.
  const routes = ["/approvals", "/servers", "/servers/$id", "/audit", "/"].map((each) => createRoute({ getParentRoute: () => root, path: each, component: Screen }));
  const router = createRouter({ routeTree: root.addChildren(routes), history: createMemoryHistory({ initialEntries: [path] }) });
  queries = new QueryClient({ defaultOptions: { queries: { retry: false, staleTime: 1e9 } } });
  render(
    <QueryClientProvider client={queries}>
      <RouterProvider router={router as never} />
    </QueryClientProvider>,
  );
  await passTime(50);
}

const passTime = (milliseconds: number) => act(() => vi.advanceTimersByTimeAsync(milliseconds));
const seen = (text: string) => document.body.textContent.includes(text);

describe.each(SCREENS)("the $name", ({ path, screen: Screen, reads, none, text }) => {
  beforeEach(() => {
    vi.useFakeTimers();
    answers = { ...COMMON, [reads]: give(none) };
    get.mockReset().mockImplementation(((path: string) => (answers[path] ?? never)()) as never);
  });
  afterEach(() => vi.useRealTimers());

  it("says that it is empty once it was read", async () => {
    await show(path, Screen);
    expect(seen(text)).toBe(true);
    expect(seen("Loading")).toBe(false);
  });

  it("is not called empty while it is read for the first time", async () => {
    answers[reads] = never;
    await show(path, Screen);
    expect([seen(text), seen("Loading")]).toEqual([false, true]);
  });

  it("is not called empty when it could not be read, and is read again on demand", async () => {
    answers[reads] = refuse;
    await show(path, Screen);
    expect(seen(text)).toBe(false);
    expect(seen("The gateway has too much to do.")).toBe(true);
    answers[reads] = give(none);
    act(() => screen.getByRole("button", { name: "Try again" }).click());
    await passTime(50);
    expect(seen(text)).toBe(true);
    expect(screen.queryByRole("alert")).toBeNull();
  });

  it("is not called empty any more when a hint says that it changed and it cannot be read", async () => {
    await show(path, Screen);
    answers[reads] = refuse;
    await act(() => queries.invalidateQueries());
    await passTime(50);
    expect(seen(text)).toBe(false);
    expect(seen("The gateway has too much to do.")).toBe(true);
  });

  it("is not called empty any more when reading it again takes long", async () => {
    await show(path, Screen);
    answers[reads] = never;
    act(() => void queries.invalidateQueries());
    await passTime(300);
    expect(seen(text)).toBe(true);
    await passTime(300);
    expect([seen(text), seen("Loading")]).toEqual([false, true]);
  });
});

describe("what needs a person", () => {
  beforeEach(() => {
    vi.useFakeTimers();
    answers = { ...COMMON, "/api/approvals": give({ approvals: [], total: 0 }), "/api/servers": give({ servers: [] }) };
    get.mockReset().mockImplementation(((path: string) => (answers[path] ?? never)()) as never);
  });
  afterEach(() => vi.useRealTimers());

  it("is nothing only if requests, servers and the configuration were read", async () => {
    await show("/", NeedsYou);
    expect(seen("Nothing waits for an answer.")).toBe(true);
  });

  it.each(["/api/approvals", "/api/servers", "/api/config"])("is not known while %s cannot be read", async (path) => {
    answers[path] = refuse;
    await show("/", NeedsYou);
    expect(seen("Nothing waits for an answer.")).toBe(false);
    expect(screen.getByRole("button", { name: "Try again" })).toBeTruthy();
  });
});
