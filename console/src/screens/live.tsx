// Live servers: pushes, turns with what was injected and rewritten, channels, state and models.
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api, ApiError, data, type Schemas } from "../api/client";
import { MAX_PAGES, usePages } from "../api/pages";
import { useFilters } from "../navigate";
import { useMayWrite } from "../session";
import { Chip, Code, Confirm, Facts, Loading, NoRows, Problem, Time, Words, type Tone } from "../ui/parts";
import { Tabs } from "../ui/tabs";
import { brief, count, visible } from "../ui/text";

export function LiveServers() {
  const [filters, change] = useFilters();
  return (
    <div className="screen">
      <h1>Live</h1>
      <Tabs
        label="Live"
        value={filters.tab ?? "turns"}
        onChange={(tab) => change({ tab })}
        tabs={[
          { id: "turns", name: "Turns", content: () => <Turns /> },
          { id: "pushes", name: "Pushes", content: () => <Pushes /> },
          { id: "channels", name: "Channels", content: () => <Channels /> },
          { id: "state", name: "State", content: () => <States /> },
          { id: "features", name: "Features", content: () => <Features /> },
          { id: "models", name: "Models and spend", content: () => <Models /> },
        ]}
      />
    </div>
  );
}

const TURN_TONES: Record<string, Tone> = { done: "good", failed: "bad", withheld: "bad", waiting: "warn", decided: "accent" };

const turnsOf = (page: Schemas["TurnPage"]) => page.turns;
const pushesOf = (page: Schemas["PushPage"]) => page.pushes;

function Turns() {
  const { list, rows: turns, hasMore, readMore, isCut } = usePages({
    queryKey: ["live", "turns"],
    read: (before: number) => data(api.GET("/api/turns", { params: { query: { before } } })),
    first: 0,
    next: (page) => page.next,
    rowsOf: turnsOf,
    maxPages: MAX_PAGES,
  });
  return (
    <div className="list">
      <Problem error={list.error} retry={() => void list.refetch()} />
      {turns.length === 0 && (
        <NoRows list={list} what="turns">
          No turns yet. A live server's push or a conversation starts one.
        </NoRows>
      )}
      {turns.map((turn) => (
        <Turn key={turn.id} turn={turn} />
      ))}
      {hasMore && (
        <button type="button" className="button" onClick={readMore}>
          Older turns
        </button>
      )}
      {isCut && <p className="soft">Older turns are not shown here.</p>}
    </div>
  );
}

function Turn({ turn }: { turn: Schemas["TurnView"] }) {
  return (
    <section className="card" aria-label={`Turn ${turn.turn + 1} of ${visible(turn.conversation)}`}>
      <div className="head">
        <h2><Words>{turn.conversation}</Words></h2>
        <Chip tone={TURN_TONES[turn.state] ?? ""}>{turn.state}</Chip>
        {turn.model && <Chip>{visible(turn.model)}</Chip>}
        <span className="soft small">
          <Words>{turn.author || turn.cause.server || turn.principal}</Words>, <Time at={turn.at} />
        </span>
      </div>
      <div className="pair">
        <div className="list">
          <h3>Asked</h3>
          <p><Words>{turn.asked}</Words></p>
        </div>
        <Injections turn={turn} />
      </div>
      <div className="pair">
        {turn.rewrite.length > 0 && (
          <div className="list">
            <h3>The model wrote</h3>
            <p className="anywhere">
              {turn.rewrite.map((each, index) => (
                <span key={index}>
                  {visible(each.kept)}
                  {each.removed > 0 && <del title="Comity does not store what a server removed">{count(each.removed)} {each.removed === 1 ? "character" : "characters"} removed</del>}
                </span>
              ))}
            </p>
          </div>
        )}
        <div className="list">
          <h3>
            {turn.rewrote.length > 0 ? <>Delivered, rewritten by <Words>{turn.rewrote.join(", ")}</Words></> : "Answered"}
          </h3>
          {turn.error ? (
            <div className="note bad"><Words>{turn.error}</Words></div>
          ) : turn.rewrite.length > 0 ? (
            <p className="anywhere">
              {turn.rewrite.map((each, index) => (
                <span key={index}>
                  {visible(each.kept)}
                  {each.added && <ins>{visible(each.added)}</ins>}
                </span>
              ))}
            </p>
          ) : (
            <p>{turn.reply === null ? <span className="soft">Nothing yet.</span> : <Words>{turn.reply}</Words>}</p>
          )}
        </div>
      </div>
      <p className="small soft">
        {count(turn.usage.inputTokens)} tokens in, {count(turn.usage.outputTokens)} out, {turn.tools_used} tools used
      </p>
    </section>
  );
}

const POSITIONS: Record<string, string> = { system: "in the system text", beforeUser: "before the message", afterUser: "after the message" };

/** The texts that live servers added for the model, beside the message that it answers. */
function Injections({ turn }: { turn: Schemas["TurnView"] }) {
  if (turn.injected.length === 0) return null;
  return (
    <div className="list">
      <h3>Added for the model</h3>
      {turn.injections.length === 0 && <p className="soft">By <Words>{turn.injected.join(", ")}</Words>. Comity no longer has the text.</p>}
      {turn.injections.map((each, index) => (
        <div key={index} className="list">
          <span className="small soft">
            <Words>{each.server}</Words>, <Words>{each.namespace}</Words>, {POSITIONS[each.position] ?? visible(each.position)}
          </span>
          <Code label={`Text of ${visible(each.server)}`} value={each.text} />
        </div>
      ))}
    </div>
  );
}

function Pushes() {
  const mayWrite = useMayWrite();
  const queries = useQueryClient();
  const { list, pages, rows: pushes, hasMore, readMore, isCut } = usePages({
    queryKey: ["live", "pushes"],
    read: (cursor: string) => data(api.GET("/api/pushes", { params: { query: { cursor } } })),
    first: "",
    next: (page) => page.next,
    rowsOf: pushesOf,
    maxPages: MAX_PAGES,
  });
  const retry = useMutation({
    mutationFn: (number: number) => data(api.POST("/api/pushes/{number}/retry", { params: { path: { number: String(number) } }, body: {} })),
    onSuccess: () => queries.invalidateQueries({ queryKey: ["live", "pushes"] }),
  });
  const first = pages[0];
  if (pushes.length === 0)
    return (
      <>
        <Problem error={list.error} retry={() => void list.refetch()} />
        <NoRows list={list} what="pushes">
          No pushes yet.
        </NoRows>
      </>
    );
  return (
    <section className="card" aria-label="Pushes">
      <Problem error={list.error} retry={() => void list.refetch()} />
      {first && <p className="soft">{count(first.waiting)} wait, {count(first.done)} done, {count(first.failed)} failed</p>}
      <Problem error={retry.error} />
      <ul className="rowlist">
        {pushes.map((push) => (
          <li key={push.number}>
            <Chip tone={push.state === "done" ? "good" : push.state === "failed" ? "bad" : "warn"}>{push.state}</Chip>
            <b><Words>{push.event}</Words></b>
            <span className="soft small">
              <Words>{push.server}</Words> to <Words>{push.to}</Words>, <Time at={push.received_at} />{push.feature_set && <>, <Words>{push.feature_set}</Words></>}, {push.attempts} {push.attempts === 1 ? "attempt" : "attempts"}
            </span>
            {push.last_error && <span className="small c2"><Words>{push.last_error}</Words></span>}
            {mayWrite && push.state === "failed" && (
              <button type="button" className="button small" onClick={() => retry.mutate(push.number)}>
                Try again
              </button>
            )}
          </li>
        ))}
      </ul>
      {hasMore && (
        <button type="button" className="button" onClick={readMore}>
          Older pushes
        </button>
      )}
      {isCut && <p className="soft">Older pushes are not shown here.</p>}
    </section>
  );
}

function Channels() {
  const found = useQuery({ queryKey: ["live", "channels"], queryFn: () => data(api.GET("/api/channels")), refetchInterval: 10_000 });
  if (found.isPending) return <Loading what="channels" />;
  if (found.error || !found.data) return <Problem error={found.error} retry={() => void found.refetch()} />;
  if (found.data.channels.length === 0) return <NoRows list={found} what="channels">No channels. A live server registers them.</NoRows>;
  return (
    <div className="grid">
      {found.data.channels.map((each) => (
        <section key={`${each.server} ${each.id}`} className="card" aria-label={visible(each.label || each.id)}>
          <div className="head">
            <h2><Words>{each.label || each.id}</Words></h2>
            <Chip tone={each.state === "open" ? "good" : ""}>{each.state}</Chip>
          </div>
          <Facts rows={[["Server", <Words key="s">{each.server}</Words>], ["Type", <Words key="t">{each.type}</Words>], ["Direction", each.direction]]} />
        </section>
      ))}
    </div>
  );
}

/** The name of the whole server in an address. No feature set has it. */
const WHOLE_SERVER = "*";

function States() {
  const [filters, change] = useFilters();
  const found = useQuery({ queryKey: ["live", "state"], queryFn: () => data(api.GET("/api/state")) });
  if (found.isPending) return <Loading what="state" />;
  if (found.error || !found.data) return <Problem error={found.error} retry={() => void found.refetch()} />;
  const states = found.data.state;
  if (states.length === 0) return <NoRows list={found} what="state">No server keeps state here.</NoRows>;
  const isOpen = (each: (typeof states)[number]) => each.server === filters.server && (each.feature_set ?? WHOLE_SERVER) === filters.feature;
  const open = states.find(isOpen) ?? states[0]!;
  const feature = open.feature_set ?? WHOLE_SERVER;
  return (
    <div className="split">
      <StateTree key={`${open.server} ${feature}`} server={open.server} feature={feature} />
      <section className="card" aria-label="States">
        <h2>States</h2>
        <ul className="rowlist">
          {states.map((each) => (
            <li key={`${each.server} ${each.feature_set}`}>
              <button
                type="button"
                className="button quiet"
                aria-pressed={each === open}
                onClick={() => change({ server: each.server, feature: each.feature_set ?? WHOLE_SERVER })}
              >
                {visible(each.server)} / {visible(each.feature_set ?? "whole server")}
              </button>
              <span className="soft small">
                {each.checkpoints} {each.checkpoints === 1 ? "checkpoint" : "checkpoints"}, {count(each.bytes)} bytes, <Time at={each.moved_at} />
              </span>
            </li>
          ))}
        </ul>
      </section>
    </div>
  );
}

type Checkpoint = Schemas["TreeNodeView"];
const MAX_INDENT = 6;

/** How far to the right each checkpoint is: the first that follows another is below it, others branch off. */
export function indents(checkpoints: Checkpoint[]): Map<string, number> {
  const found = new Map<string, number>();
  const continued = new Set<string>();
  for (const each of checkpoints) {
    const before = each.follows === null ? 0 : (found.get(each.follows) ?? 0);
    const isBranch = each.follows !== null && continued.has(each.follows);
    found.set(each.checkpoint, Math.min(MAX_INDENT, before + (isBranch ? 1 : 0)));
    if (each.follows !== null) continued.add(each.follows);
  }
  return found;
}

function StateTree({ server, feature }: { server: string; feature: string }) {
  const mayWrite = useMayWrite();
  const queries = useQueryClient();
  const [goal, setGoal] = useState<string | null>(null);
  const found = useQuery({ queryKey: ["live", "state", server, feature], queryFn: () => data(api.GET("/api/state/{server}/{feature}", { params: { path: { server, feature } } })) });
  if (found.isPending) return <Loading what="the tree" />;
  if (found.error || !found.data) return <Problem error={found.error} retry={() => void found.refetch()} />;
  const depths = indents(found.data.checkpoints);
  return (
    <section className="card" aria-label="State tree">
      <h2>
        Checkpoints of <Words>{server}</Words> / <Words>{feature === WHOLE_SERVER ? "whole server" : feature}</Words>
      </h2>
      {!found.data.can_roll_back && <p className="soft small">The server cannot roll this state back now.</p>}
      <ol className="rowlist">
        {found.data.checkpoints.map((each) => (
          <li key={each.checkpoint} style={{ paddingLeft: `${depths.get(each.checkpoint)! * 1.25}rem` }}>
            {depths.get(each.checkpoint)! > 0 && <span aria-hidden="true" className="soft">↳</span>}
            <code className="anywhere">{visible(each.checkpoint)}</code>
            {each.is_current && <Chip tone="accent">current</Chip>}
            {each.is_lost && <Chip tone="bad">lost</Chip>}
            {!each.is_on_line && <Chip>branch</Chip>}
            <span className="soft small">
              <Time at={each.at} />, {count(each.bytes)} bytes{each.parent && `, after ${visible(each.parent)}`}
            </span>
            {mayWrite && found.data.can_roll_back && !each.is_current && !each.is_lost && (
              <button type="button" className="button small" aria-label={`Roll back to ${visible(each.checkpoint)}`} onClick={() => setGoal(each.checkpoint)}>
                Roll back
              </button>
            )}
          </li>
        ))}
      </ol>
      {goal && (
        <Confirm
          title={`Roll back to ${brief(goal, 80)}?`}
          action="Roll back"
          tone="bad full"
          onClose={() => setGoal(null)}
          onConfirm={async () => {
            const done = await data(api.POST("/api/state/{server}/{feature}/rollback", { params: { path: { server, feature } }, body: { checkpoint: goal } }));
            await queries.invalidateQueries({ queryKey: ["live"] });
            if (!done.success) throw new ApiError(`The server did not roll back: ${done.reason ?? "it gave no reason"}.`, 0);
          }}
        >
          <p>The server continues from this checkpoint. Later checkpoints stay as a branch.</p>
          <CheckpointData server={server} feature={feature} checkpoint={goal} />
        </Confirm>
      )}
    </section>
  );
}

function CheckpointData({ server, feature, checkpoint }: { server: string; feature: string; checkpoint: string }) {
  const found = useQuery({
    queryKey: ["live", "state", server, feature, checkpoint],
    queryFn: () => data(api.GET("/api/state/{server}/{feature}/{checkpoint}", { params: { path: { server, feature, checkpoint } } })),
  });
  if (found.data?.data === undefined) return null;
  return <Code label="State at this checkpoint" value={found.data.data} />;
}

function Features() {
  const mayWrite = useMayWrite();
  const queries = useQueryClient();
  const found = useQuery({ queryKey: ["live", "features"], queryFn: () => data(api.GET("/api/features")) });
  const decide = useMutation({
    mutationFn: ({ server, feature, what }: { server: string; feature: string; what: "enable" | "disable" }) => data(api.POST(`/api/features/${what}`, { body: { server, feature, justification: "" } })),
    onSuccess: () => queries.invalidateQueries({ queryKey: ["live", "features"] }),
  });
  if (found.isPending) return <Loading what="features" />;
  if (found.error || !found.data) return <Problem error={found.error} retry={() => void found.refetch()} />;
  if (found.data.servers.length === 0) return <NoRows list={found} what="features">No live servers.</NoRows>;
  return (
    <div className="list">
      <Problem error={decide.error} />
      {found.data.servers.map((server) => (
        <section key={server.server} className="card" aria-label={visible(server.server)}>
          <h2><Words>{server.server}</Words></h2>
          <ul className="rowlist">
            {server.features.map((each) => (
              <li key={each.feature}>
                <Chip tone={each.enabled ? "good" : ""}>{each.enabled ? "on" : "off"}</Chip>
                <b><Words>{each.feature}</Words></b>
                <span className="soft small">{brief(each.description || each.reason)}</span>
                {mayWrite && (
                  <button type="button" className="button small" onClick={() => decide.mutate({ server: server.server, feature: each.feature, what: each.enabled ? "disable" : "enable" })}>
                    {each.enabled ? "Turn off" : "Turn on"}
                  </button>
                )}
              </li>
            ))}
          </ul>
        </section>
      ))}
    </div>
  );
}

function Models() {
  const models = useQuery({ queryKey: ["live", "models"], queryFn: () => data(api.GET("/api/models")) });
  const usage = useQuery({ queryKey: ["live", "usage"], queryFn: () => data(api.GET("/api/models/usage")) });
  if (models.isPending) return <Loading what="models" />;
  return (
    <div className="grid">
      <section className="card" aria-label="Models">
        <h2>Models</h2>
        <Problem error={models.error} />
        {models.data?.models.length === 0 && <p className="soft">No models are configured.</p>}
        <ul className="rowlist">
          {models.data?.models.map((each) => (
            <li key={each.id}>
              <b><Words>{each.id}</Words></b>
              {each.is_default && <Chip tone="accent">default</Chip>}
              {each.retry_after_ms !== null && <Chip tone="bad">paused</Chip>}
              <span className="soft small">{visible(each.vendor)}, {count(each.context_window)} tokens</span>
            </li>
          ))}
        </ul>
      </section>
      <section className="card" aria-label="Spend">
        <h2>Spend today</h2>
        <Problem error={usage.error} />
        {usage.data?.usage.length === 0 && <p className="soft">Nothing yet.</p>}
        <ul className="rowlist">
          {usage.data?.usage.map((each, index) => (
            <li key={index} className="spend">
              <b><Words>{each.principal}</Words></b>
              <span className="soft small"><Words>{[each.model, each.feature].filter(Boolean).join(", ")}</Words></span>
              <span className="number right">{count(each.input_tokens + each.output_tokens)} tokens, ${each.cost.toFixed(4)}</span>
            </li>
          ))}
        </ul>
      </section>
    </div>
  );
}
