// All servers: their states, filters, and a way to each one.
import { api, data, type Schemas } from "../api/client";
import { usePages } from "../api/pages";
import { at, useFilters, useGo } from "../navigate";
import { Chip, NoRows, Problem, SearchBox, Select, Time, Words, type Tone } from "../ui/parts";
import { VirtualList, type Column } from "../ui/list";
import { count } from "../ui/text";

type Server = Schemas["ServerSummaryView"];
type State = Server["state"];

const TONES: Record<string, Tone> = {
  connected: "good",
  connecting: "warn",
  restarting: "warn",
  draining: "warn",
  registered: "",
  disconnected: "",
  error: "bad",
};
export const serverTone = (state: string): Tone => TONES[state] ?? "";

export function ServerState({ state }: { state: string }) {
  return <Chip tone={serverTone(state)}>{state}</Chip>;
}

const STATES = [["", "All states"], ...Object.keys(TONES).map((each) => [each, each] as const)] as const;

const COLUMNS: Column<Server>[] = [
  { name: "Server", width: "minmax(4rem, 2fr)", cell: (row) => <b><Words>{row.label || row.id}</Words></b>, onPhone: true },
  { name: "State", width: "minmax(7.5rem, 1fr)", cell: (row) => <ServerState state={row.state} />, onPhone: true },
  {
    name: "Definitions",
    width: "7.5rem",
    cell: (row) => (row.quarantined ? <Chip tone="warn" title="Tools that no client sees before a person accepts their definition">{count(row.quarantined)} to review</Chip> : null),
    onPhone: true,
  },
  { name: "Since", width: "6.5rem", cell: (row) => <Time at={row.since} /> },
  { name: "Tools", width: "4rem", cell: (row) => <span className="number">{count(row.tools)}</span> },
  { name: "Restarts", width: "5rem", cell: (row) => <span className="number">{row.restarts}</span> },
  {
    name: "Reason",
    width: "minmax(8rem, 2fr)",
    cell: (row) => <span className="soft"><Words>{row.reason}</Words></span>,
  },
];

/** Where nothing waits for a review, a phone has its room for the names. */
const REVIEWED_COLUMNS = COLUMNS.map((each) => (each.name === "Definitions" ? { ...each, onPhone: false } : each));

const serversOf = (page: { servers: Server[] }) => page.servers;
const keyOf = (row: Server) => row.id;

export function useServers(filters: { state?: string; search?: string }) {
  return usePages({
    queryKey: ["servers", "list", filters],
    read: (cursor: number) =>
      data(api.GET("/api/servers", { params: { query: { state: (filters.state || undefined) as State | undefined, text: filters.search, cursor } } })),
    first: 0,
    next: (page) => (page.next ? Number(page.next) : undefined),
    rowsOf: serversOf,
    keepsRows: true,
  });
}

export function Servers() {
  const [filters, change] = useFilters();
  const go = useGo();
  const { list, pages, rows, hasMore, readMore, isOld, setAtTop } = useServers({ state: filters.state, search: filters.search });
  const total = pages[0]?.total;
  return (
    <div className="screen">
      <div className="head">
        <h1>Servers</h1>
        <div className="bar">
          <SearchBox label="Filter servers" value={filters.search ?? ""} onChange={(search) => change({ search })} />
          <Select label="State" value={filters.state ?? ""} options={STATES} onChange={(state) => change({ state })} />
        </div>
      </div>
      <Problem error={list.error} retry={() => void list.refetch()} />
      {rows.length === 0 ? (
        <NoRows list={list} what="servers" isMore={hasMore}>
          {filters.search || filters.state ? "No server fits these filters." : <span>No servers yet. Run <code>comity servers add</code> or <code>comity init</code>.</span>}
        </NoRows>
      ) : (
        <VirtualList
          label="Servers"
          rows={rows}
          columns={rows.some((each) => each.quarantined) ? COLUMNS : REVIEWED_COLUMNS}
          keyOf={keyOf}
          onOpen={(row) => go(at.server(row.id))}
          total={total}
          isMore={hasMore}
          onMore={readMore}
          isOld={isOld}
          onTop={setAtTop}
        />
      )}
    </div>
  );
}
