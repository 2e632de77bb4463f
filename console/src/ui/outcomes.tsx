// How a call ended, in the classes of the gateway, and what denied or withheld it.
import type { Schemas } from "../api/client";
import { To } from "../navigate";
import { Chip, Facts, Words, type Tone } from "./parts";
import { visible } from "./text";

type Decider = NonNullable<Schemas["AuditEntryView"]["decided_by"]>;
export type Outcome = NonNullable<Schemas["AuditEntryView"]["outcome"]>;

const TONES: Record<Outcome, [Tone, string]> = {
  waiting: ["warn", "waiting"],
  denied: ["bad", "denied by rule"],
  withheld: ["warn", "withheld"],
  unknown: ["", "unknown name"],
  failed: ["bad", "failed"],
  cancelled: ["", "cancelled"],
  done: ["good", "done"],
};

/** All outcomes with their words, for a filter. */
export const OUTCOMES = Object.entries(TONES).map(([outcome, [, words]]) => [outcome as Outcome, words] as const);

export const outcomeTone = (outcome: Outcome): Tone => TONES[outcome]?.[0] ?? "";

export function OutcomeChip({ outcome, decider }: { outcome: Outcome; decider?: Decider | null }) {
  const [tone, words] = TONES[outcome] ?? ["", outcome];
  return <Chip tone={tone}>{outcome === "denied" && decider?.kind === "approval" ? "not approved" : words}</Chip>;
}

const BY_GRANTS = new Set(["grant", "guardrail", "credential", "default"]);

/** What decided about a call that did not run, with a way to all rules that apply to it. */
export function DecidedBy({ decider, principal }: { decider: Decider; principal: string }) {
  const isByGrants = BY_GRANTS.has(decider.kind) && principal && decider.server;
  return (
    <section className="card" aria-label="Decided by">
      <h2>Why it did not run</h2>
      <Facts
        rows={[
          ["Decided by", decider.text],
          ["Entry", decider.entry && <code className="anywhere">{visible(decider.entry)}</code>],
          ["Reason", decider.why && <Words>{decider.why}</Words>],
          ["Made by", decider.by && <Words>{decider.by}</Words>],
        ]}
      />
      {isByGrants && (
        <div className="bar">
          <To path="/access" search={{ tab: "explain", principal, tool: `${decider.server}/${decider.tool}` }} className="button">
            Explain the rules for this call
          </To>
        </div>
      )}
      {decider.kind === "review" && decider.server && (
        <div className="bar">
          <To path={`/servers/${encodeURIComponent(decider.server)}`} search={{ tab: "review" }} className="button">
            Review the definition
          </To>
        </div>
      )}
    </section>
  );
}
