// All servers: their states, filters, and a way to each one.
import { useInfiniteQuery } from "@tanstack/react-query";
import { api, data, type Schemas } from "../api/client";
import { at, useFilters, useGo } from "../navigate";
import { Chip, Empty, Loading, Problem, SearchBox, Select, Time, Words, type Tone } from "../ui/parts";
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
  { name: "Server", width: "minmax(8rem, 2fr)", cell: (row) => <b><Words>{row.label || row.id}</Words></b>, onPhone: true },
  { name: "State", width: "minmax(7.5rem, 1fr)", cell: (row) => <ServerState state={row.state} />, onPhone: true },
  { name: "Since", width: "6.5rem", cell: (row) => <Time at={row.since} /> },
  { name: "Tools", width: "4rem", cell: (row) => <span className="number">{count(row.tools)}</span> },
  { name: "Restarts", width: "5rem", cell: (row) => <span className="number">{row.restarts}</span> },
  {
    name: "Needs attention",
    width: "minmax(8rem, 2fr)",
    cell: (row) => (row.quarantined ? <Chip tone="warn">{row.quarantined} in quarantine</Chip> : <span className="soft"><Words>{row.reason}</Words></span>),
  },
];

export function useServers(filters: { state?: string; search?: string }) {
  return useInfiniteQuery({
    queryKey: ["servers", "list", filters],
    queryFn: ({ pageParam }) =>
      data(api.GET("/api/servers", { params: { query: { state: (filters.state || undefined) as State | undefined, text: filters.search, cursor: pageParam } } })),
    initialPageParam: 0,
    getNextPageParam: (page) => (page.next ? Number(page.next) : undefined),
  });
}

export function Servers() {
  const [filters, change] = useFilters();
  const go = useGo();
  const list = useServers({ state: filters.state, search: filters.search });
  const rows = list.data?.pages.flatMap((page) => page.servers) ?? [];
  const total = list.data?.pages[0]?.total;
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
      {list.isPending ? (
        <Loading what="servers" />
      ) : rows.length === 0 ? (
        <Empty>{filters.search || filters.state ? "No server fits these filters." : <span>No servers yet. Run <code>comity servers add</code> or <code>comity init</code>.</span>}</Empty>
      ) : (
        <VirtualList
          label="Servers"
          rows={rows}
          columns={COLUMNS}
          keyOf={(row) => row.id}
          onOpen={(row) => go(at.server(row.id))}
          total={total}
          isMore={list.hasNextPage}
          onMore={() => list.isFetchingNextPage || void list.fetchNextPage()}
        />
      )}
    </div>
  );
}
