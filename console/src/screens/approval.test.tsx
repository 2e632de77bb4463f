import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { render } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { api, type Schemas } from "../api/client";
import { AnswerButtons } from "./approval";

const post = vi.spyOn(api, "POST");
const dangerous = { id: "1", kind: "confirm", risk: "dangerous", tool: "wipe", server: "disks", summary: "disks/wipe", quorum: 1, may_answer: true, schema: null, rule: null, rule_refusal: null };

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

  it.each([
    ["the tool", {}, "wipe"],
    ["the server, if there is no tool", { tool: "" }, "disks"],
    ["the word approve, if there is neither", { tool: "", server: "" }, "approve"],
    ["the tool, if the risk is not known", { risk: null }, "wipe"],
    ["the tool, if the risk has a new name", { risk: "critical" }, "wipe"],
  ])("needs %s typed", async (_, changes, word) => {
    const user = await pressApprove(changes);
    expect(post).not.toHaveBeenCalled();
    await user.keyboard(`${word}{Enter}`);
    expect(post).toHaveBeenCalledOnce();
  });

  it.each(["safe", "moderate"])("needs no word for a %s call", async (risk) => {
    await pressApprove({ risk });
    expect(post).toHaveBeenCalledOnce();
  });
});
