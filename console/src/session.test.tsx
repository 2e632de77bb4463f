import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { act, render, screen } from "@testing-library/react";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { api } from "./api/client";
import { switchNotificationsOff, switchNotificationsOn } from "./push";
import { SignOutButton } from "./session";

const post = vi.spyOn(api, "POST");
const get = vi.spyOn(api, "GET");
const said: string[] = [];

/** A browser with a subscription, whose push service can be without an answer. */
function stubBrowser(unsubscribe: () => Promise<boolean>) {
  const subscription = { unsubscribe, toJSON: () => ({ endpoint: "https://push.example/1", keys: { p256dh: "p", auth: "a" } }) };
  const worker = { pushManager: { subscribe: async () => subscription, getSubscription: async () => subscription } };
  vi.stubGlobal("navigator", { userAgent: navigator.userAgent, serviceWorker: { register: async () => worker, getRegistration: async () => worker } });
}

const unsubscribe = async () => {
  said.push("unsubscribe");
  return true;
};

async function signOut() {
  render(
    <QueryClientProvider client={new QueryClient()}>
      <SignOutButton />
    </QueryClientProvider>,
  );
  await act(async () => screen.getByText("Sign out").click());
}

describe("notifications", () => {
  beforeEach(() => {
    vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
    said.length = 0;
    stubBrowser(unsubscribe);
    get.mockReset().mockResolvedValue({ data: { public_key: "key", subscriptions: [] } } as never);
    post.mockReset().mockImplementation((async (path: string, { body }: { body: { id?: string } }) => {
      said.push(`${path} ${body.id ?? ""}`.trim());
      return { data: { id: "sub-1" } };
    }) as never);
    vi.stubGlobal("fetch", async (path: string) => {
      said.push(path);
      // Going to another page is no part of jsdom.
      return { ok: false, status: 500 };
    });
  });
  afterEach(() => {
    vi.useRealTimers();
    vi.unstubAllGlobals();
    localStorage.clear();
  });

  it("end in the browser and at the gateway when they are switched off", async () => {
    await switchNotificationsOn();
    await switchNotificationsOff();
    expect(said.sort()).toEqual(["/api/push-subscriptions", "/api/push-subscriptions/delete sub-1", "unsubscribe"]);
    said.length = 0;
    await switchNotificationsOff();
    expect(said).toEqual(["unsubscribe"]);
  });

  it("end before the session", async () => {
    await switchNotificationsOn();
    said.length = 0;
    await signOut();
    await act(() => vi.advanceTimersByTimeAsync(10));
    expect(said.slice(0, 2).sort()).toEqual(["/api/push-subscriptions/delete sub-1", "unsubscribe"]);
    expect(said[2]).toBe("/logout");
  });

  it("do not keep the session when the push service or the gateway fails", async () => {
    await switchNotificationsOn();
    stubBrowser(() => new Promise(() => {}));
    post.mockRejectedValue(new Error("no"));
    said.length = 0;
    await signOut();
    expect(said).toEqual([]);
    await act(() => vi.advanceTimersByTimeAsync(2_000));
    expect(said).toEqual(["/logout"]);
  });
});
