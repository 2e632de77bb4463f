// The views: named subsets of tools, with their problems; and one view with its tools.
import { useQuery } from "@tanstack/react-query";
import { useParams } from "@tanstack/react-router";
import { api, data, type Schemas } from "../api/client";
import { at, To, useFilters, useGo } from "../navigate";
import { Chip, Code, CopyButton, Empty, Facts, Loading, NoRows, Problem, SearchBox, Words, type Tone } from "../ui/parts";
import { VirtualList, type Column } from "../ui/list";
import { count, visible } from "../ui/text";

type View = Schemas["ViewSummary"];
type Tool = Schemas["ViewToolView"];

const TONES: Record<string, Tone> = { served: "good", withheld: "bad", quarantined: "warn" };

function ProblemCount({ problems }: { problems: string[] }) {
  return problems.length ? <Chip tone="warn">{problems.length === 1 ? "1 problem" : `${problems.length} problems`}</Chip> : null;
}

const COLUMNS: Column<View>[] = [
  { name: "View", width: "minmax(5rem, 1fr)", cell: (row) => <b><Words>{row.title || row.name}</Words></b>, onPhone: true },
  { name: "Endpoint", width: "minmax(10rem, 1fr)", cell: (row) => <span className="mono">{visible(row.path)}</span> },
  {
    name: "Tools",
    width: "4.5rem",
    cell: (row) => <span className="number">{row.served === row.tools ? count(row.tools) : `${row.served} of ${row.tools}`}</span>,
    onPhone: true,
  },
  { name: "Needs attention", width: "minmax(8rem, 1fr)", cell: (row) => <ProblemCount problems={row.problems} />, onPhone: true },
];

export function Views() {
  const go = useGo();
  // Under the key of tools, so that a change of tools reads the views again too.
  const list = useQuery({ queryKey: ["tools", "views"], queryFn: () => data(api.GET("/api/views")) });
  const rows = list.data?.views ?? [];
  return (
    <div className="screen">
      <div className="head">
        <h1>Views</h1>
      </div>
      <Problem error={list.error} retry={() => void list.refetch()} />
      {rows.length === 0 ? (
        <NoRows list={list} what="views">
          <span>
            No views yet. Declare one in <code>[[views]]</code>, or run <code>comity views suggest PRINCIPAL</code>.
          </span>
        </NoRows>
      ) : (
        <VirtualList label="Views" rows={rows} columns={COLUMNS} keyOf={(row) => row.name} onOpen={(row) => go(at.view(row.name))} total={rows.length} />
      )}
    </div>
  );
}

const TOOL_COLUMNS: Column<Tool>[] = [
  { name: "Name", width: "minmax(8rem, 1fr)", cell: (row) => <span className="mono">{visible(row.name)}</span>, onPhone: true },
  { name: "Tool", width: "minmax(8rem, 1fr)", cell: (row) => <span className="mono soft">{visible(`${row.server}/${row.tool}`)}</span> },
  { name: "State", width: "8rem", cell: (row) => <Chip tone={TONES[row.state] ?? ""}>{row.state}</Chip>, onPhone: true },
  { name: "Changes", width: "minmax(8rem, 1fr)", cell: (row) => <Words>{changesOf(row)}</Words> },
  { name: "Drift", width: "minmax(8rem, 1fr)", cell: (row) => <Words>{[row.reason, ...row.drift].filter(Boolean).join("; ")}</Words> },
];

/** The changes that a view makes to a tool, in one line. */
export function changesOf(tool: Pick<Tool, "changes">): string {
  const { arguments: fixed = {}, defaults = {}, annotations = {}, title, description } = tool.changes;
  return [
    ...Object.entries(fixed).map(([name, value]) => `${name} = ${JSON.stringify(value)}`),
    ...Object.entries(defaults).map(([name, value]) => `${name} defaults to ${JSON.stringify(value)}`),
    ...Object.entries(annotations).map(([name, value]) => `${name}: ${value}`),
    ...(title ? ["title"] : []),
    ...(description ? ["description"] : []),
  ].join(", ");
}

export function ViewScreen() {
  const { name } = useParams({ strict: false }) as { name: string };
  const [filters, change] = useFilters();
  const go = useGo();
  const found = useQuery({ queryKey: ["tools", "view", name], queryFn: () => data(api.GET("/api/views/{view}", { params: { path: { view: name } } })) });
  if (found.isPending) return <Loading what="the view" />;
  if (found.error || !found.data) return <Problem error={found.error} retry={() => void found.refetch()} />;
  const view = found.data;
  const wanted = (filters.search ?? "").toLowerCase();
  const rows = view.items.filter((each) => `${each.name} ${each.server}/${each.tool}`.toLowerCase().includes(wanted));
  const url = new URL(view.path, location.origin).href;
  return (
    <div className="screen">
      <div className="head">
        <h1><Words>{view.title || view.name}</Words></h1>
        <ProblemCount problems={view.problems} />
        <div className="bar">
          <SearchBox label="Filter tools" value={filters.search ?? ""} onChange={(search) => change({ search })} />
        </div>
      </div>
      {view.description && <p><Words>{view.description}</Words></p>}
      <Facts
        rows={[
          ["Endpoint", <span key="url" className="bar"><span className="mono">{url}</span> <CopyButton text={url} /></span>],
          ["Prefix of names", view.prefix],
          ["Whole servers", view.whole_servers.length ? view.whole_servers.map((each) => <To key={each} path={at.server(each)}>{visible(each)} </To>) : "none"],
        ]}
      />
      {view.problems.length > 0 && (
        <div className="card">
          <h2>Problems</h2>
          <Code label="Problems" value={view.problems.join("\n")} />
        </div>
      )}
      {rows.length === 0 ? (
        <Empty>{wanted ? "No tool fits this filter." : "The view has no tools now."}</Empty>
      ) : (
        <VirtualList
          label="Tools of the view"
          rows={rows}
          columns={TOOL_COLUMNS}
          keyOf={(row) => row.name}
          onOpen={(row) => go("/tools", { search: row.tool })}
          total={rows.length}
        />
      )}
    </div>
  );
}
