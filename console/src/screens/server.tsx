// One server: state, restarts, stderr, tools with their risk, permissions and quarantine.
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useParams } from "@tanstack/react-router";
import { useState } from "react";
import { api, data, type Schemas } from "../api/client";
import { at, To, useFilters } from "../navigate";
import { useMayWrite } from "../session";
import { Diff } from "../ui/diff";
import { Chip, Code, Confirm, CopyButton, Empty, Facts, Loading, NoRows, Problem, Risk, Time, Words } from "../ui/parts";
import { Tabs } from "../ui/tabs";
import { brief, count, visible } from "../ui/text";
import { ServerState } from "./servers";

type Detail = Schemas["ServerDetailView"];
type Order = "restart" | "stop" | "start";

export function Server() {
  const { id } = useParams({ strict: false }) as { id: string };
  const [filters, change] = useFilters();
  const found = useQuery({ queryKey: ["servers", id], queryFn: () => data(api.GET("/api/servers/{server}", { params: { path: { server: id } } })) });
  if (found.isPending) return <Loading what="the server" />;
  if (found.error || !found.data) return <Problem error={found.error} retry={() => void found.refetch()} />;
  const server = found.data;
  const quarantined = Object.keys(server.quarantined ?? {}).length;
  return (
    <div className="screen">
      <div className="head">
        <h1>
          <Words>{server.label || server.id}</Words>
        </h1>
        <ServerState state={server.state} />
        <Orders server={server} />
      </div>
      {server.reason && <div className="note warn"><Words>{server.reason}</Words></div>}
      <Tabs
        label="Server"
        value={filters.tab ?? "state"}
        onChange={(tab) => change({ tab })}
        tabs={[
          { id: "state", name: "State", content: () => <State server={server} /> },
          { id: "tools", name: "Tools", count: server.tools, content: () => <ServerTools id={server.id} /> },
          { id: "review", name: "Quarantine", count: quarantined, content: () => <Quarantine server={server} /> },
          { id: "permissions", name: "Permissions", count: server.permissions.length, content: () => <Permissions server={server} /> },
          { id: "output", name: "Output", content: () => <Output id={server.id} /> },
        ]}
      />
    </div>
  );
}

function Orders({ server }: { server: Detail }) {
  const mayWrite = useMayWrite();
  const queries = useQueryClient();
  const [order, setOrder] = useState<Order | null>(null);
  if (!mayWrite) return null;
  const isStopped = ["stopped", "disconnected"].includes(server.state);
  const orders: Order[] = isStopped ? ["start"] : ["restart", "stop"];
  const names = { restart: "Restart", stop: "Stop", start: "Start" };
  const effects = {
    restart: "Calls that run may finish first. Calls that arrive meanwhile wait.",
    stop: "The tools of this server disappear for every client until it starts again.",
    start: "The server starts with its configured command.",
  };
  return (
    <div className="bar">
      {orders.map((each) => (
        <button key={each} type="button" className={`button ${each === "stop" ? "bad" : ""}`} onClick={() => setOrder(each)}>
          {names[each]}
        </button>
      ))}
      {order && (
        <Confirm
          title={`${names[order]} ${visible(server.id)}?`}
          action={names[order]}
          tone={order === "stop" ? "bad full" : "primary"}
          onClose={() => setOrder(null)}
          onConfirm={async () => {
            const path = `/api/servers/{server}/${order}` as const;
            await data(api.POST(path, { params: { path: { server: server.id } }, body: {} }));
            await queries.invalidateQueries({ queryKey: ["servers"] });
          }}
        >
          <p>{effects[order]}</p>
        </Confirm>
      )}
    </div>
  );
}

function State({ server }: { server: Detail }) {
  return (
    <div className="split">
      <section className="card" aria-label="Facts">
        <h2>Facts</h2>
        <Facts
          rows={[
            ["Id", <code key="id">{visible(server.id)}</code>],
            ["Transport", server.transport],
            ["Reached by", <Words key="reached" className="mono">{server.reached}</Words>],
            ["Protocol", server.protocol_versions.join(", ")],
            ["In this state", <Time key="since" at={server.since} />],
            ["Restarts", server.restarts],
            ["Reported health", server.health],
            ["Registered by", server.registered_by],
            ["Trust", server.trust],
            ["Tools", count(server.tools)],
            ["Resources", count(server.resources)],
            ["Prompts", count(server.prompts)],
            ["Instructions", typeof server.instructions === "string" ? <Words>{brief(server.instructions, 600)}</Words> : null],
          ]}
        />
      </section>
      <section className="card" aria-label="History">
        <h2>Recent changes of state</h2>
        {server.history.length === 0 ? (
          <p className="soft">No changes since the gateway started.</p>
        ) : (
          <ul className="rowlist">
            {server.history.map((each, index) => (
              <li key={index}>
                <Time at={each.at} />
                <ServerState state={each.state} />
                <span className="soft">
                  <Words>{[each.reason, each.by && `by ${each.by}`].filter(Boolean).join(", ")}</Words>
                </span>
              </li>
            ))}
          </ul>
        )}
      </section>
    </div>
  );
}

function ServerTools({ id }: { id: string }) {
  const list = useQuery({ queryKey: ["servers", id, "tools"], queryFn: () => data(api.GET("/api/definitions", { params: { query: { server: id, all: "true" } } })) });
  if (list.isPending) return <Loading what="tools" />;
  if (list.error || !list.data) return <Problem error={list.error} retry={() => void list.refetch()} />;
  if (list.data.tools.length === 0) return <NoRows list={list} what="tools">This server has no tools.</NoRows>;
  return (
    <div className="card scrolls" tabIndex={0} role="region" aria-label="Tools of this server">
      <table>
        <thead>
          <tr>
            <th>Tool</th>
            <th>Risk</th>
            <th>Review</th>
          </tr>
        </thead>
        <tbody>
          {list.data.tools.map((tool) => (
            <tr key={tool.name}>
              <td>
                <To path={at.tool(tool.name)} className="mono">
                  {visible(tool.tool)}
                </To>
              </td>
              <td>
                <Risk level={tool.risk} />
              </td>
              <td>
                <Chip tone={tool.state === "accepted" ? "good" : "warn"}>{tool.state}</Chip>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Quarantine({ server }: { server: Detail }) {
  const list = useQuery({
    queryKey: ["servers", server.id, "definitions"],
    queryFn: () => data(api.GET("/api/definitions", { params: { query: { server: server.id } } })),
  });
  const waiting = list.data?.tools.filter((each) => each.state !== "accepted") ?? [];
  if (list.isPending) return <Loading what="definitions" />;
  if (list.error) return <Problem error={list.error} retry={() => void list.refetch()} />;
  const names = new Set(list.data?.tools.map((each) => each.tool));
  const unlisted = Object.entries(server.quarantined).filter(([name]) => !names.has(name));
  if (waiting.length + unlisted.length === 0)
    return (
      <NoRows list={list} what="definitions">
        Nothing is in quarantine. A changed definition waits here until a person accepts it.
      </NoRows>
    );
  return (
    <div className="list">
      {waiting.map((each) => (
        <Definition key={each.name} definition={each} />
      ))}
      {unlisted.map(([name, reason]) => (
        <section key={name} className="card" aria-label={`Definition of ${visible(name)}`}>
          <div className="head">
            <h2 className="mono">{visible(name)}</h2>
            <Chip tone="warn">cannot be listed</Chip>
          </div>
          <p className="note warn"><Words>{reason}</Words></p>
        </section>
      ))}
    </div>
  );
}

function Definition({ definition }: { definition: Schemas["DefinitionView"] }) {
  const { server, tool, digest } = definition;
  const mayWrite = useMayWrite();
  const queries = useQueryClient();
  const [isAsking, setAsking] = useState(false);
  const compared = useQuery({
    queryKey: ["servers", server, "definitions", tool, digest],
    queryFn: () => data(api.GET("/api/definitions/{server}/{tool}", { params: { path: { server, tool } } })),
  });
  const accept = useMutation({
    mutationFn: () => data(api.POST("/api/definitions/accept", { body: { server, tools: { [tool]: digest } } })),
    onSuccess: () => queries.invalidateQueries({ queryKey: ["servers"] }),
  });
  const findings = [...definition.findings, ...(compared.data?.shadows ?? [])];
  return (
    <section className="card" aria-label={`Definition of ${visible(tool)}`}>
      <div className="head">
        <h2 className="mono">{visible(tool)}</h2>
        <Chip tone="warn">{definition.state}</Chip>
        <Risk level={definition.risk} />
        {mayWrite && (
          <button type="button" className="button primary" onClick={() => setAsking(true)}>
            Accept this definition
          </button>
        )}
      </div>
      {findings.map((each, index) => (
        <p key={index} className="note warn">
          <Words>{`${each.what} (${each.where})`}</Words>
        </p>
      ))}
      <Problem error={compared.error} />
      {compared.data?.changes.map((each) => (
        <div key={each.at} className="list">
          <h3 className="mono">{visible(each.at)}</h3>
          <Diff label={`Change of ${visible(each.at)}`} before={each.before ?? ""} after={each.after ?? ""} />
        </div>
      ))}
      {compared.data && compared.data.changes.length === 0 && <Code label="Definition" value={compared.data.shown} />}
      {isAsking && (
        <Confirm title={`Accept ${visible(tool)}?`} action="Accept" onClose={() => setAsking(false)} onConfirm={() => accept.mutateAsync()}>
          <p>Clients see this definition at once. The next change waits for a person again.</p>
        </Confirm>
      )}
    </section>
  );
}

function Permissions({ server }: { server: Detail }) {
  const mayWrite = useMayWrite();
  const queries = useQueryClient();
  const decide = useMutation({
    mutationFn: ({ permission, what }: { permission: string; what: "approve" | "deny" }) =>
      data(api.POST(`/api/permissions/${what}`, { body: { server: server.id, permission, justification: "", expires_in_seconds: null } })),
    onSuccess: () => queries.invalidateQueries({ queryKey: ["servers"] }),
  });
  if (server.permissions.length === 0) return <Empty>This server asks for no permissions.</Empty>;
  return (
    <div className="card">
      <Problem error={decide.error} />
      <ul className="rowlist">
        {server.permissions.map((each) => (
          <li key={each.permission}>
            <code>{visible(each.permission)}</code>
            <Chip tone={each.decision === "approved" ? "good" : each.decision === "denied" ? "bad" : "warn"}>{each.decision}</Chip>
            {mayWrite && (
              <span className="bar">
                <button type="button" className="button" disabled={decide.isPending} onClick={() => decide.mutate({ permission: each.permission, what: "approve" })}>
                  Approve
                </button>
                <button type="button" className="button bad" disabled={decide.isPending} onClick={() => decide.mutate({ permission: each.permission, what: "deny" })}>
                  Deny
                </button>
              </span>
            )}
          </li>
        ))}
      </ul>
    </div>
  );
}

function Output({ id }: { id: string }) {
  const logs = useQuery({ queryKey: ["servers", id, "logs"], queryFn: () => data(api.GET("/api/servers/{server}/logs", { params: { path: { server: id } } })), refetchInterval: 3_000 });
  if (logs.isPending) return <Loading what="output" />;
  if (logs.error || !logs.data) return <Problem error={logs.error} />;
  const text = logs.data.lines.join("\n");
  return (
    <div className="card">
      <div className="head">
        <h2>Last lines on stderr</h2>
        <CopyButton text={text} />
      </div>
      {text ? <Code label="stderr" value={text} /> : <p className="soft">The server wrote nothing.</p>}
    </div>
  );
}
