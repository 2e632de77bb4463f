// The whole gateway at a glance: what needs a person first, then live plots, servers and nodes.
import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { api, data, type Schemas } from "../api/client";
import { at, To } from "../navigate";
import { Chip, Loading, NoRows, Problem, Time, Words } from "../ui/parts";
import { Plot, type Series } from "../ui/plot";
import { count, duration, visible } from "../ui/text";
import { NeedsYou } from "./needs-you";
import { serverTone, useServers } from "./servers";

type Sample = Schemas["SampleView"];

export function Overview() {
  const found = useQuery({ queryKey: ["metrics", "overview"], queryFn: () => data(api.GET("/api/overview")), refetchInterval: 30_000 });
  if (found.isPending) return <Loading what="the overview" />;
  if (found.error || !found.data) return <Problem error={found.error} retry={() => void found.refetch()} />;
  const counts = found.data;
  const states: Record<string, number> = counts.servers;
  const up = states.connected ?? 0;
  const all = Object.values(states).reduce((sum, each) => sum + each, 0);
  return (
    <div className="screen">
      <h1>Overview</h1>
      <div className="tiles">
        <To path="/approvals" className={`tile ${counts.open_approvals ? "needs" : ""}`}>
          <span>Waiting for a person</span>
          <b>{count(counts.open_approvals)}</b>
        </To>
        <To path="/servers" className="tile">
          <span>Servers connected</span>
          <b>
            {count(up)}
            <span className="soft"> / {count(all)}</span>
          </b>
        </To>
        <To path="/tools" className="tile">
          <span>Tools</span>
          <b>{count(counts.tools)}</b>
        </To>
        <To path="/access" className="tile">
          <span>Principals</span>
          <b>{count(counts.principals)}</b>
        </To>
      </div>
      <NeedsYou />
      <Plots samples={counts.series} seconds={counts.sample_seconds} />
      <div className="grid">
        <StateMap />
        <Nodes />
      </div>
    </div>
  );
}

const money = (value: number) => `$${value.toFixed(value && value < 0.1 ? 4 : 2)}`;

function Plots({ samples, seconds }: { samples: Sample[]; seconds: number }) {
  const times = useMemo(() => samples.map((each) => each.at), [samples]);
  const line = (name: string, colour: Series["colour"], pick: (each: Sample) => number | null, dashed = false): Series => ({ name, colour, dashed, values: samples.map(pick) });
  const calls = useMemo(() => [line("calls", "c1", (each) => each.calls), line("denied", "c2", (each) => each.outcomes.denied ?? 0, true), line("failed", "c3", (each) => each.outcomes.failed ?? 0, true)], [samples]);
  const latency = useMemo(() => [line("median", "c1", (each) => each.p50_ms), line("95th percentile", "c3", (each) => each.p95_ms, true)], [samples]);
  const waiting = useMemo(() => [line("waiting", "c3", (each) => each.waiting)], [samples]);
  const cost = useMemo(() => [line("cost", "c4", (each) => each.cost)], [samples]);
  return (
    <div className="grid plots">
      <Plot title={`Calls in ${seconds} s`} times={times} series={calls} />
      <Plot title="Latency" times={times} series={latency} format={duration} />
      <Plot title="Approval requests" times={times} series={waiting} />
      <Plot title="Cost of models" times={times} series={cost} format={money} />
    </div>
  );
}

const MAP_LIMIT = 500;

function StateMap() {
  const { list, rows } = useServers({});
  const servers = rows.slice(0, MAP_LIMIT);
  const glyphs = { good: "●", warn: "▲", bad: "■", accent: "◆", "": "○" };
  return (
    <section className="card" aria-label="Servers">
      <div className="head">
        <h2>Servers</h2>
        <div className="legend" aria-hidden="true">
          <span className="c4">● connected</span>
          <span className="c3">▲ changing</span>
          <span className="c2">■ error</span>
        </div>
      </div>
      <Problem error={list.error} retry={() => void list.refetch()} />
      <div className="map">
        {servers.map((each) => {
          const tone = serverTone(each.state);
          return (
            <To key={each.id} path={at.server(each.id)} className={tone || "plain"} title={`${visible(each.label || each.id)}: ${each.state}`}>
              <span aria-hidden="true">{glyphs[tone]}</span>
              <span className="hidden-visually">
                {visible(each.label || each.id)}: {each.state}
              </span>
            </To>
          );
        })}
      </div>
      {servers.length === 0 && (
        <NoRows list={list} what="servers">
          No servers yet.
        </NoRows>
      )}
    </section>
  );
}

function Nodes() {
  const found = useQuery({ queryKey: ["nodes"], queryFn: () => data(api.GET("/api/nodes")) });
  return (
    <section className="card" aria-label="Nodes">
      <h2>Nodes</h2>
      <Problem error={found.error} retry={() => void found.refetch()} />
      {found.isPending && <Loading what="nodes" />}
      {found.data?.isolated && <div className="note bad">This node is cut off: <Words>{found.data.isolated}</Words></div>}
      <ul className="rowlist">
        {found.data?.nodes.map((node) => (
          <li key={node.id}>
            <b><Words>{node.name}</Words></b>
            {node.is_self && <Chip tone="accent">this one</Chip>}
            <span className="soft small">
              {node.version}, started <Time at={node.started} />, runs {node.runs.length} {node.runs.length === 1 ? "server" : "servers"}
            </span>
            {node.runs.length > 0 && <span className="small soft anywhere">{visible(node.runs.slice(0, 12).join(", "))}{node.runs.length > 12 && "…"}</span>}
          </li>
        ))}
      </ul>
    </section>
  );
}
