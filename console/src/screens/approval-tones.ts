// The tone and the word of each state of an approval request.
import type { Tone } from "../ui/parts";

export const APPROVAL_TONES: Record<string, Tone> = {
  pending: "warn",
  deferred: "warn",
  approved: "good",
  consumed: "good",
  denied: "bad",
  expired: "",
  cancelled: "",
  withdrawn: "",
};

/** A consumed request is an approved one whose call was sent. The answers tell what became of it. */
export const approvalWord = (state: string) => (state === "consumed" ? "approved" : state);
