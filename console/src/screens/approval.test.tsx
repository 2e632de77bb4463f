import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { render } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { api, type Schemas } from "../api/client";
import { AnswerButtons } from "./approval";

const post = vi.spyOn(api, "POST");
const dangerous = { id: "1", kind: "confirm", risk: "dangerous", tool: "wipe", server: "disks", summary: "disks/wipe", quorum: 1, may_answer: true, schema: null, rule: null, rule_refusal: null, confirmation_word: "wipe", answers: [] };

async function pressApprove(changes: object) {
  const request = { ...dangerous, ...changes } as unknown as Schemas["BriefingView"];
  render(
    <QueryClientProvider client={new QueryClient()}>
      <AnswerButtons request={request} hasShortcuts />
    </QueryClientProvider>,
  );
  const user = userEvent.setup();
  await user.keyboard("a");
  await user.keyboard("{Enter}");
  return user;
}

describe("an approval by keys", () => {
  beforeEach(() => void post.mockReset().mockResolvedValue({ data: {} } as never));
  afterEach(() => localStorage.clear());

  it("needs the word of the gateway typed", async () => {
    const user = await pressApprove({});
    expect(post).not.toHaveBeenCalled();
    await user.keyboard("wipe{Enter}");
    expect(post).toHaveBeenCalledOnce();
  });

  it("needs no word where the gateway has none", async () => {
    await pressApprove({ confirmation_word: null });
    expect(post).toHaveBeenCalledOnce();
  });
});
