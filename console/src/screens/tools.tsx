// All tools, and the search playground with the parts of each score.
import { useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { api, data, type Schemas } from "../api/client";
import { usePages } from "../api/pages";
import { at, useFilters, useGo } from "../navigate";
import { VirtualList, type Column } from "../ui/list";
import { Chip, Empty, NoRows, Problem, Risk, SearchBox, Select, Words } from "../ui/parts";
import { Tabs } from "../ui/tabs";
import { brief, count, duration, visible } from "../ui/text";

type Tool = Schemas["ToolSummaryView"];
type Hit = Schemas["SearchHitView"];

const COLUMNS: Column<Tool>[] = [
  { name: "Tool", width: "minmax(9rem, 1.4fr)", cell: (row) => <span className="mono">{visible(row.tool || row.name)}</span>, onPhone: true },
  { name: "Server", width: "minmax(6rem, 0.8fr)", cell: (row) => <Words>{row.server}</Words>, onPhone: true },
  { name: "Risk", width: "7.5rem", cell: (row) => <Risk level={row.risk} /> },
  { name: "Description", width: "minmax(10rem, 2.4fr)", cell: (row) => <span className="soft">{brief(row.description)}</span> },
];

export function Tools() {
  const [filters, change] = useFilters();
  return (
    <div className="screen">
      <h1>Tools</h1>
      <Tabs
        label="Tools"
        value={filters.tab ?? "all"}
        onChange={(tab) => change({ tab })}
        tabs={[
          { id: "all", name: "All tools", content: () => <AllTools /> },
          { id: "search", name: "Search playground", content: () => <Playground /> },
        ]}
      />
    </div>
  );
}

const toolsOf = (page: { tools: Tool[] }) => page.tools;
const keyOf = (row: Tool) => row.name;

function AllTools() {
  const [filters, change] = useFilters();
  const go = useGo();
  const { search = "", server } = filters;
  const { list, rows, hasMore, readMore, isOld, setAtTop } = usePages({
    queryKey: ["tools", "list", search, server],
    read: (cursor: string) => data(api.GET("/api/tools", { params: { query: { search, server, cursor: cursor || undefined } } })),
    first: "",
    next: (page) => page.next,
    rowsOf: toolsOf,
    keepsRows: true,
  });
  // The search filters each page, so an empty page may have a next one.
  useEffect(() => {
    if (rows.length < 20) readMore();
  }, [rows.length, readMore]);
  return (
    <>
      <div className="bar">
        <SearchBox label="Filter tools" value={search} onChange={(value) => change({ search: value })} />
        {server && (
          <button type="button" className="button" onClick={() => change({ server: undefined })}>
            Server: {visible(server)} ✕
          </button>
        )}
      </div>
      <Problem error={list.error} retry={() => void list.refetch()} />
      {rows.length === 0 ? (
        <NoRows list={list} what="tools" isMore={hasMore}>
          {search || server ? "No tool fits." : "No tools yet."}
        </NoRows>
      ) : (
        <VirtualList
          label="Tools"
          rows={rows}
          columns={COLUMNS}
          keyOf={keyOf}
          onOpen={(row) => go(at.tool(row.name))}
          isMore={hasMore}
          onMore={readMore}
          isOld={isOld}
          onTop={setAtTop}
        />
      )}
    </>
  );
}

const STRATEGIES = [
  ["hybrid", "Hybrid"],
  ["keyword", "Keywords"],
  ["semantic", "Meaning"],
] as const;

function Playground() {
  const [text, setText] = useState("");
  const [strategy, setStrategy] = useState<(typeof STRATEGIES)[number][0]>("hybrid");
  const found = useQuery({
    queryKey: ["tools", "search", text, strategy],
    queryFn: () => data(api.GET("/api/search", { params: { query: { query: text, strategy, limit: 8 } } })),
    enabled: text.trim().length > 1,
  });
  return (
    <>
      <p className="soft">Search as an agent does. Each result shows how it was found and what it costs in the context of a model.</p>
      <div className="bar">
        <SearchBox label="What should a tool do?" placeholder="read a file and count its words" value={text} onChange={setText} />
        <Select label="Strategy" value={strategy} options={STRATEGIES} onChange={setStrategy} />
      </div>
      <Problem error={found.error} />
      {found.data && (
        <p className="small soft" role="status">
          {found.data.tools.length} of {count(found.data.total_available)} tools in {duration(found.data.query_time_ms)} by {found.data.fallback_strategy ?? found.data.search_strategy}
          {found.data.fallback_strategy && ` (instead of ${found.data.search_strategy})`}
        </p>
      )}
      <ol className="list">
        {found.data?.tools.map((hit, index) => (
          <HitCard key={hit.name} hit={hit} place={index + 1} />
        ))}
      </ol>
      {found.data?.tools.length === 0 && <Empty>No tool fits.</Empty>}
    </>
  );
}

function HitCard({ hit, place }: { hit: Hit; place: number }) {
  const go = useGo();
  const parts = Object.entries(hit.score_parts ?? {});
  return (
    <li className="card">
      <div className="head">
        <h2>
          {place}.{" "}
          <a
            className="mono"
            href={`/console${at.tool(hit.name)}`}
            onClick={(event) => {
              event.preventDefault();
              go(at.tool(hit.name));
            }}
          >
            {visible(hit.name)}
          </a>
        </h2>
        <Risk level={hit.security.risk_level} />
        <Chip>≈ {hit.tokens} tokens</Chip>
        <b className="number">{hit.relevance_score.toFixed(3)}</b>
      </div>
      <p><Words>{brief(hit.description, 240)}</Words></p>
      {parts.length > 0 && (
        <div className="legend">
          {parts.map(([name, value]) => (
            <span key={name}>
              {name} <b className="number">{Number(value).toFixed(3)}</b>
            </span>
          ))}
        </div>
      )}
    </li>
  );
}
