import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { createMemoryHistory, createRootRoute, createRoute, createRouter, RouterProvider } from "@tanstack/react-router";
import { render, screen, waitFor } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { beforeEach, describe, expect, it, vi } from "vitest";
import { api } from "../api/client";
import { Audit } from "./audit";

const get = vi.spyOn(api, "GET");
/** The queries of the search, and what it answers to the first, the second and so on. */
const searches: Record<string, string | undefined>[] = [];
let pages: object[];

const entry = (seq: number, outcome: string) => ({ node: "n", seq, at: "2026-11-15T08:30:00Z", type: "TOOL_BLOCKED", actor: "agent:ci", server: "files", tool: "read", result: "BLOCKED", trace: "", call: "", details: {}, hash: "", outcome, decided_by: null });

function show(path: string) {
  const root = createRootRoute();
  const route = createRoute({ getParentRoute: () => root, path: "/audit", component: Audit });
  const router = createRouter({ routeTree: root.addChildren([route]), history: createMemoryHistory({ initialEntries: [path] }) });
  render(
    <QueryClientProvider client={new QueryClient()}>
      <RouterProvider router={router as never} />
    </QueryClientProvider>,
  );
  return { user: userEvent.setup(), router };
}

describe("the search by outcome", () => {
  beforeEach(() => {
    searches.length = 0;
    vi.spyOn(HTMLElement.prototype, "clientHeight", "get").mockReturnValue(440);
    get.mockReset().mockImplementation((async (path: string, options: { params: { query: Record<string, string> } }) => {
      if (path !== "/api/audit") return { data: { state: "never", findings: [] } };
      searches.push(options.params.query);
      return { data: pages[Math.min(searches.length, pages.length) - 1] };
    }) as never);
  });

  it("offers each outcome, keeps the chosen one in the address and sends it", async () => {
    pages = [{ entries: [entry(1, "denied")] }];
    const { user, router } = show("/audit");
    const filter = (await screen.findByLabelText("Outcome")) as HTMLSelectElement;
    expect([...filter.options].map((each) => each.value)).toEqual(["", "waiting", "denied", "withheld", "unknown", "failed", "cancelled", "done"]);
    expect(searches[0]!.outcome).toBeUndefined();
    await user.selectOptions(filter, "denied by rule");
    await waitFor(() => expect(searches.at(-1)!.outcome).toBe("denied"));
    expect(router.state.location.search).toMatchObject({ outcome: "denied" });
  });

  it("searches older entries only when the reader asks for them", async () => {
    pages = [{ entries: [], next: "a", searched_to: "2026-11-14T08:30:00Z" }, { entries: [], next: "b", searched_to: "2026-11-13T08:30:00Z" }, { entries: [] }];
    const { user } = show("/audit?outcome=waiting");
    await screen.findByText(/No entry fits so far/);
    expect(screen.queryByText("No entry fits these filters.")).toBeNull();
    expect(searches).toHaveLength(1);
    await user.click(screen.getByRole("button", { name: "Search older entries" }));
    await waitFor(() => expect(searches.map((each) => each.cursor)).toEqual(["", "a"]));
    await user.click(await screen.findByRole("button", { name: "Search older entries" }));
    await screen.findByText("No entry fits these filters.");
    expect(searches.map((each) => each.cursor)).toEqual(["", "a", "b"]);
  });

  it("says below the rows how far it searched", async () => {
    pages = [{ entries: [entry(2, "waiting")], next: "a", searched_to: "2026-11-14T08:30:00Z" }, { entries: [entry(1, "waiting")] }];
    const { user } = show("/audit?outcome=waiting");
    await screen.findByText(/Searched back to/);
    expect(searches).toHaveLength(1);
    await user.click(screen.getByRole("button", { name: "Search older entries" }));
    await screen.findByRole("button", { name: "Save 2 entries" });
    expect(screen.queryByText(/Searched back to/)).toBeNull();
  });
});
