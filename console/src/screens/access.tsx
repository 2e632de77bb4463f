// Principals, groups, keys, grants, "which entry decided", and suggested grants.
import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useId, useState, type FormEvent } from "react";
import { api, data, type Schemas } from "../api/client";
import { at, To, useFilters } from "../navigate";
import { useMayWrite, useSession } from "../session";
import { VirtualList, type Column } from "../ui/list";
import { Chip, Code, Confirm, CopyButton, Dialog, Facts, Loading, NoRows, Problem, SearchBox, Time, Words, type Tone } from "../ui/parts";
import { Tabs } from "../ui/tabs";
import { visible } from "../ui/text";

type Principal = Schemas["PrincipalView"];
type Grant = Schemas["GrantView"];
type Key = Schemas["KeyView"];

export const EFFECT_TONES: Record<string, Tone> = { allow: "good", ask: "warn", deny: "bad" };

export function Access() {
  const [filters, change] = useFilters();
  return (
    <div className="screen">
      <h1>Access</h1>
      <Tabs
        label="Access"
        value={filters.tab ?? "principals"}
        onChange={(tab) => change({ tab })}
        tabs={[
          { id: "principals", name: "Principals", content: () => <Principals /> },
          { id: "groups", name: "Groups", content: () => <Groups /> },
          { id: "grants", name: "Grants", content: () => <Grants /> },
          { id: "explain", name: "Explain", content: () => <Explain /> },
          { id: "keys", name: "Keys", content: () => <Keys /> },
          { id: "sessions", name: "Sessions", content: () => <Sessions /> },
          { id: "suggested", name: "Suggested", content: () => <Suggestions /> },
        ]}
      />
    </div>
  );
}

function Principals() {
  const [search, setSearch] = useState("");
  const [open, setOpen] = useState<Principal | null>(null);
  const list = useInfiniteQuery({
    queryKey: ["principals", "list"],
    queryFn: ({ pageParam }) => data(api.GET("/api/principals", { params: { query: { cursor: pageParam } } })),
    initialPageParam: "",
    getNextPageParam: (page) => page.next,
  });
  const rows = (list.data?.pages.flatMap((page) => page.principals) ?? []).filter((each) => `${each.id} ${each.label}`.toLowerCase().includes(search.toLowerCase()));
  const columns: Column<Principal>[] = [
    { name: "Principal", width: "minmax(10rem, 2fr)", cell: (row) => <b><Words>{row.id}</Words></b>, onPhone: true },
    { name: "Kind", width: "5rem", cell: (row) => row.kind },
    { name: "Name", width: "minmax(6rem, 1fr)", cell: (row) => <Words>{row.label}</Words> },
    { name: "Groups", width: "minmax(8rem, 2fr)", cell: (row) => <span className="soft">{visible(row.groups.join(", "))}</span> },
    { name: "State", width: "6.5rem", cell: (row) => (row.disabled ? <Chip tone="bad">disabled</Chip> : <Chip tone="good">active</Chip>), onPhone: true },
  ];
  return (
    <>
      <SearchBox label="Filter principals" value={search} onChange={setSearch} />
      <Problem error={list.error} retry={() => void list.refetch()} />
      {rows.length === 0 ? (
        <NoRows list={list} what="principals">
          {search ? "No principal fits." : <span>No principals yet. Run <code>comity principals create</code>, or let people sign in.</span>}
        </NoRows>
      ) : (
        <VirtualList label="Principals" rows={rows} columns={columns} keyOf={(row) => row.id} onOpen={setOpen} isMore={list.hasNextPage} onMore={() => list.isFetchingNextPage || void list.fetchNextPage()} />
      )}
      {open && <PrincipalDialog principal={open} onClose={() => setOpen(null)} />}
    </>
  );
}

function PrincipalDialog({ principal, onClose }: { principal: Principal; onClose: () => void }) {
  const mayWrite = useMayWrite();
  const queries = useQueryClient();
  const grants = useQuery({ queryKey: ["grants", "of", principal.id], queryFn: () => data(api.GET("/api/grants", { params: { query: { subject: principal.id } } })) });
  const toggle = useMutation({
    mutationFn: () => {
      const path = principal.disabled ? ("/api/principals/{principal}/enable" as const) : ("/api/principals/{principal}/disable" as const);
      return data(api.POST(path, { params: { path: { principal: principal.id } }, body: {} }));
    },
    onSuccess: () => {
      void queries.invalidateQueries({ queryKey: ["principals"] });
      onClose();
    },
  });
  return (
    <Dialog title={visible(principal.id)} onClose={onClose} className="wide">
      <Facts
        rows={[
          ["Kind", principal.kind],
          ["Name", principal.label && <Words>{principal.label}</Words>],
          ["Groups", principal.groups.length > 0 && visible(principal.groups.join(", "))],
          ["Created", principal.created_at && <Time at={principal.created_at} />],
          ["Created by", principal.created_by && <Words>{principal.created_by}</Words>],
        ]}
      />
      <h3>Own grants</h3>
      {grants.data && grants.data.grants.length > 0 ? <GrantTable grants={grants.data.grants} /> : <p className="soft">None of its own. Grants of its groups and of everybody apply too.</p>}
      <Problem error={toggle.error} />
      <div className="bar">
        {mayWrite && (
          <button type="button" className={`button ${principal.disabled ? "" : "bad"}`} disabled={toggle.isPending} onClick={() => toggle.mutate()}>
            {principal.disabled ? "Enable" : "Disable: ends sessions and blocks keys at once"}
          </button>
        )}
        <button type="button" className="button" onClick={onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}

function Groups() {
  const list = useQuery({ queryKey: ["principals", "groups"], queryFn: () => data(api.GET("/api/groups")) });
  if (list.isPending) return <Loading what="groups" />;
  if (list.error || !list.data) return <Problem error={list.error} retry={() => void list.refetch()} />;
  if (list.data.groups.length === 0) return <NoRows list={list} what="groups">No groups yet. They come from the sign-in of people (groups_claim) or from SCIM.</NoRows>;
  return (
    <div className="grid">
      {list.data.groups.map((group) => (
        <section key={group.name} className="card" aria-label={visible(group.name)}>
          <div className="head">
            <h2><Words>{group.name}</Words></h2>
            <Chip>{group.member_count} members</Chip>
          </div>
          <p className="small soft anywhere">{visible(group.members.slice(0, 30).join(", "))}</p>
        </section>
      ))}
    </div>
  );
}

function GrantTable({ grants, onDelete }: { grants: Grant[]; onDelete?: (grant: Grant) => void }) {
  return (
    <div className="scrolls" tabIndex={0} role="region" aria-label="Grants">
      <table className="stacked">
        <thead>
          <tr>
            <th>Effect</th>
            <th>Subject</th>
            <th>May</th>
            <th>On</th>
            <th className="phone-hidden">Why</th>
            <th className="phone-hidden">Ends</th>
            {onDelete && <th><span className="hidden-visually">Actions</span></th>}
          </tr>
        </thead>
        <tbody>
          {grants.map((grant, index) => (
            <tr key={grant.id ?? index}>
              <td><Chip tone={EFFECT_TONES[grant.effect] ?? ""}>{grant.effect}</Chip></td>
              <td><Words>{grant.subject}</Words></td>
              <td className="mono">{visible(grant.verb)}</td>
              <td className="mono">
                {visible(grant.target)}
                {grant.where_text && <span className="soft small"> where {visible(grant.where_text)}</span>}
              </td>
              <td className="phone-hidden soft small"><Words>{grant.justification}</Words></td>
              <td className="phone-hidden">{grant.expires_at ? <Time at={grant.expires_at} /> : <span className="soft">never</span>}</td>
              {onDelete && (
                <td className="right nowrap">
                  {grant.source === "records" ? (
                    <button type="button" className="button small bad" onClick={() => onDelete(grant)}>
                      Revoke
                    </button>
                  ) : (
                    <span className="soft small">{grant.source === "file" ? "file" : "built in"}</span>
                  )}
                </td>
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Grants() {
  const mayWrite = useMayWrite();
  const queries = useQueryClient();
  const [search, setSearch] = useState("");
  const [isNew, setNew] = useState(false);
  const [doomed, setDoomed] = useState<Grant | null>(null);
  const list = useInfiniteQuery({
    queryKey: ["grants", "list"],
    queryFn: ({ pageParam }) => data(api.GET("/api/grants", { params: { query: { cursor: pageParam } } })),
    initialPageParam: "",
    getNextPageParam: (page) => page.next,
  });
  const words = search.toLowerCase();
  const grants = (list.data?.pages.flatMap((page) => page.grants) ?? []).filter((each) => `${each.subject} ${each.verb} ${each.target} ${each.effect}`.toLowerCase().includes(words));
  return (
    <>
      <div className="bar">
        <SearchBox label="Filter grants" value={search} onChange={setSearch} />
        {mayWrite && (
          <button type="button" className="button primary" onClick={() => setNew(true)}>
            New grant
          </button>
        )}
      </div>
      <Problem error={list.error} retry={() => void list.refetch()} />
      {grants.length > 0 ? (
        <div className="card">
          <GrantTable grants={grants} onDelete={mayWrite ? setDoomed : undefined} />
        </div>
      ) : (
        <NoRows list={list} what="grants">
          {list.hasNextPage ? "None of these grants fit. More grants follow." : "No grants fit."}
        </NoRows>
      )}
      {list.hasNextPage && (
        <button type="button" className="button" onClick={() => void list.fetchNextPage()} disabled={list.isFetchingNextPage}>
          More grants
        </button>
      )}
      {isNew && <NewGrant onClose={() => setNew(false)} />}
      {doomed && (
        <Confirm
          title="Revoke this grant?"
          action="Revoke"
          tone="bad full"
          onClose={() => setDoomed(null)}
          onConfirm={async () => {
            const { subject, verb, target, effect, where } = doomed;
            await data(api.POST("/api/grants/delete", { body: { subject, verb, target, effect, where, justification: "", expires_at: null, conditional: false } }));
            await queries.invalidateQueries({ queryKey: ["grants"] });
          }}
        >
          <Preview change={{ ...doomed, remove: true }} />
        </Confirm>
      )}
    </>
  );
}

interface Change {
  subject: string;
  verb: string;
  target: string;
  effect: Grant["effect"];
  remove: boolean;
}

/** The dry run of a change: who would gain or lose what, and what it would have done lately. */
function Preview({ change }: { change: Change }) {
  const { subject, verb, target, effect, remove } = change;
  const found = useQuery({
    queryKey: ["grants", "preview", subject, verb, target, effect, remove],
    queryFn: () => {
      const grant = { subject, verb, target, effect, justification: "", expires_at: null, where: null, reach: [] };
      return data(api.POST("/api/grants/preview", { body: { put: remove ? [] : [grant], delete: remove ? [grant] : [], days: 7 } }));
    },
    enabled: Boolean(subject && target),
  });
  if (found.isFetching) return <p className="soft" role="status">Looking at what would change…</p>;
  if (found.error) return <Problem error={found.error} />;
  if (!found.data) return null;
  return (
    <div className="note" role="status">
      <p>
        {found.data.gained} gained, {found.data.lost} lost, {found.data.asked} would ask a person{!found.data.is_complete && " (only a part was looked at)"}. <Words>{found.data.past_calls.sentence}</Words>
      </p>
      <ul>
        {found.data.changes.slice(0, 12).map((each, index) => (
          <li key={index} className="small">
            <Words>{each.principal}</Words>: <span className="mono">{visible(`${each.server}/${each.tool}`)}</span>{each.view && <> in the view {visible(each.view)}</>} {each.before} → <b>{each.after}</b>
          </li>
        ))}
      </ul>
      {found.data.changes.length > 12 && <p className="small soft">and {found.data.changes.length - 12} more</p>}
    </div>
  );
}

function NewGrant({ onClose }: { onClose: () => void }) {
  const id = useId();
  const queries = useQueryClient();
  const [grant, setGrant] = useState<Change>({ subject: "", verb: "tools/call", target: "", effect: "allow", remove: false });
  const [why, setWhy] = useState("");
  const [isShown, setShown] = useState(false);
  const put = useMutation({
    mutationFn: () => data(api.POST("/api/grants", { body: { subject: grant.subject, verb: grant.verb, target: grant.target, effect: grant.effect, justification: why, expires_at: null, where: null } })),
    onSuccess: () => {
      void queries.invalidateQueries({ queryKey: ["grants"] });
      onClose();
    },
  });
  const set = (changes: Partial<Change>) => {
    setShown(false);
    setGrant({ ...grant, ...changes });
  };
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (isShown) put.mutate();
    else setShown(true);
  };
  return (
    <Dialog title="New grant" onClose={onClose}>
      <form className="dialog" style={{ padding: 0 }} onSubmit={submit}>
        <div className="field">
          <label htmlFor={`${id}s`}>Who</label>
          <input id={`${id}s`} required value={grant.subject} placeholder="agent:ci, group:sre, or *" onChange={(event) => set({ subject: event.target.value })} />
        </div>
        <div className="field">
          <label htmlFor={`${id}e`}>Effect</label>
          <select id={`${id}e`} value={grant.effect} onChange={(event) => set({ effect: event.target.value as Grant["effect"] })}>
            <option value="allow">allow</option>
            <option value="ask">ask: a person approves each call</option>
            <option value="deny">deny</option>
          </select>
        </div>
        <div className="field">
          <label htmlFor={`${id}v`}>What</label>
          <input id={`${id}v`} required value={grant.verb} onChange={(event) => set({ verb: event.target.value })} />
        </div>
        <div className="field">
          <label htmlFor={`${id}t`}>On</label>
          <input id={`${id}t`} required value={grant.target} placeholder="server/tool, server/*, or *" onChange={(event) => set({ target: event.target.value })} />
        </div>
        <div className="field">
          <label htmlFor={`${id}w`}>Why</label>
          <input id={`${id}w`} value={why} onChange={(event) => setWhy(event.target.value)} />
        </div>
        {isShown && <Preview change={grant} />}
        <Problem error={put.error} />
        <div className="bar">
          <button type="button" className="button" onClick={onClose}>
            Cancel
          </button>
          <button className="button primary" disabled={put.isPending}>
            {isShown ? "Create the grant" : "Show what changes"}
          </button>
        </div>
      </form>
    </Dialog>
  );
}

function Explain() {
  const [filters, change] = useFilters();
  const id = useId();
  const [principal, setPrincipal] = useState(filters.principal ?? "");
  const [tool, setTool] = useState(filters.tool ?? "");
  const found = useQuery({
    queryKey: ["grants", "explain", filters.principal, filters.tool],
    queryFn: () => data(api.GET("/api/grants/explain", { params: { query: { principal: filters.principal!, tool: filters.tool! } } })),
    enabled: Boolean(filters.principal && filters.tool),
  });
  return (
    <div className="card">
      <form
        className="bar"
        onSubmit={(event) => {
          event.preventDefault();
          change({ principal, tool });
        }}
      >
        <label htmlFor={`${id}p`}>May</label>
        <input id={`${id}p`} required value={principal} placeholder="agent:ci" onChange={(event) => setPrincipal(event.target.value)} />
        <label htmlFor={`${id}t`}>call</label>
        <input id={`${id}t`} required value={tool} placeholder="server/tool" onChange={(event) => setTool(event.target.value)} />
        <button className="button primary">Explain</button>
      </form>
      <Problem error={found.error} />
      {found.data && (
        <div className="list" role="status">
          <p>
            <Chip tone={EFFECT_TONES[found.data.effect] ?? ""}>{found.data.effect}</Chip> <Words>{found.data.sentence}</Words>
          </p>
          <ul className="rowlist">
            {found.data.entries.map((each, index) => (
              <li key={index}>
                <Chip tone={each.role === "decides" ? "accent" : ""}>{each.role}</Chip>
                <Chip tone={EFFECT_TONES[each.effect] ?? ""}>{each.effect}</Chip>
                <span className="mono anywhere">{visible(`${each.subject} ${each.verb} ${each.target}`)}</span>
                <span className="small soft"><Words>{each.justification}</Words></span>
              </li>
            ))}
          </ul>
          {found.data.views.length > 0 && <h3>In views</h3>}
          <ul className="rowlist">
            {found.data.views.map((each) => (
              <li key={each.view}>
                <To path={at.view(each.view)}>{visible(each.view)}</To>
                <Chip tone={EFFECT_TONES[each.effect] ?? ""}>{each.effect}</Chip>
                <span className="mono anywhere">{visible(each.name)}</span>
                <span className="small soft"><Words>{each.sentence}</Words></span>
              </li>
            ))}
          </ul>
          {found.data.guardrail && <p className="note bad">A guardrail denies this: <Words>{found.data.guardrail.reason}</Words></p>}
        </div>
      )}
    </div>
  );
}

function Keys() {
  const mayWrite = useMayWrite();
  const queries = useQueryClient();
  const [made, setMade] = useState<string | null>(null);
  const [isNew, setNew] = useState(false);
  const [doomed, setDoomed] = useState<Key | null>(null);
  const list = useInfiniteQuery({
    queryKey: ["keys", "list"],
    queryFn: ({ pageParam }) => data(api.GET("/api/keys", { params: { query: { cursor: pageParam } } })),
    initialPageParam: "",
    getNextPageParam: (page) => page.next,
  });
  const rows = list.data?.pages.flatMap((page) => page.keys) ?? [];
  const columns: Column<Key>[] = [
    { name: "Key", width: "minmax(7rem, 1fr)", cell: (row) => <code>{visible(row.id)}</code>, onPhone: true },
    { name: "Principal", width: "minmax(9rem, 2fr)", cell: (row) => <Words>{row.principal}</Words>, onPhone: true },
    { name: "Label", width: "minmax(6rem, 1fr)", cell: (row) => <Words>{row.label}</Words> },
    { name: "Last used", width: "7rem", cell: (row) => <Time at={row.last_used} /> },
    { name: "State", width: "7rem", cell: (row) => (row.revoked_at ? <Chip>revoked</Chip> : <Chip tone="good">active</Chip>) },
  ];
  return (
    <>
      {mayWrite && (
        <div className="bar">
          <button type="button" className="button primary" onClick={() => setNew(true)}>
            New key
          </button>
        </div>
      )}
      <Problem error={list.error} retry={() => void list.refetch()} />
      {rows.length === 0 ? <NoRows list={list} what="keys">No keys yet.</NoRows> : (
        <VirtualList label="Keys" rows={rows} columns={columns} keyOf={(row) => row.id} onOpen={(row) => mayWrite && !row.revoked_at && setDoomed(row)} isMore={list.hasNextPage} onMore={() => list.isFetchingNextPage || void list.fetchNextPage()} />
      )}
      {isNew && <NewKey onClose={() => setNew(false)} onMade={setMade} />}
      {made && (
        <Dialog title="The new key" onClose={() => setMade(null)}>
          <p>Copy it now. Comity keeps only its digest and cannot show it again.</p>
          <Code label="API key" value={made} />
          <div className="bar">
            <CopyButton text={made}>Copy the key</CopyButton>
            <button type="button" className="button" onClick={() => setMade(null)}>
              Done
            </button>
          </div>
        </Dialog>
      )}
      {doomed && (
        <Confirm
          title={`Revoke the key ${visible(doomed.id)}?`}
          action="Revoke"
          tone="bad full"
          onClose={() => setDoomed(null)}
          onConfirm={async () => {
            await data(api.POST("/api/keys/{key}/revoke", { params: { path: { key: doomed.id } }, body: {} }));
            await queries.invalidateQueries({ queryKey: ["keys", "list"] });
          }}
        >
          <p>Programs that use this key of {visible(doomed.principal)} lose access within a second.</p>
        </Confirm>
      )}
    </>
  );
}

function NewKey({ onClose, onMade }: { onClose: () => void; onMade: (key: string) => void }) {
  const id = useId();
  const queries = useQueryClient();
  const [principal, setPrincipal] = useState("");
  const [label, setLabel] = useState("");
  const make = useMutation({
    mutationFn: () => data(api.POST("/api/keys", { body: { principal, label, permissions: [], requests_per_minute: null, requests_per_hour: null, not_before: null, expires_at: null } })),
    onSuccess: (found) => {
      void queries.invalidateQueries({ queryKey: ["keys", "list"] });
      onClose();
      onMade(found.key);
    },
  });
  return (
    <Dialog title="New key" onClose={onClose}>
      <form
        className="dialog"
        style={{ padding: 0 }}
        onSubmit={(event) => {
          event.preventDefault();
          make.mutate();
        }}
      >
        <div className="field">
          <label htmlFor={`${id}p`}>Principal</label>
          <input id={`${id}p`} required value={principal} placeholder="agent:ci" onChange={(event) => setPrincipal(event.target.value)} />
        </div>
        <div className="field">
          <label htmlFor={`${id}l`}>Label</label>
          <input id={`${id}l`} value={label} onChange={(event) => setLabel(event.target.value)} />
        </div>
        <Problem error={make.error} />
        <div className="bar">
          <button type="button" className="button" onClick={onClose}>
            Cancel
          </button>
          <button className="button primary" disabled={make.isPending}>
            Create the key
          </button>
        </div>
      </form>
    </Dialog>
  );
}

function Sessions() {
  const mayWrite = useMayWrite();
  const mine = useSession().data?.session;
  const queries = useQueryClient();
  const list = useQuery({ queryKey: ["grants", "sessions"], queryFn: () => data(api.GET("/api/sessions")) });
  const revoke = useMutation({
    mutationFn: (id: string) => data(api.POST("/api/sessions/{session}/revoke", { params: { path: { session: id } }, body: {} })),
    onSuccess: () => queries.invalidateQueries({ queryKey: ["grants", "sessions"] }),
  });
  if (list.isPending) return <Loading what="sessions" />;
  if (list.error || !list.data) return <Problem error={list.error} retry={() => void list.refetch()} />;
  const sessions = list.data.sessions ?? [];
  return (
    <div className="card">
      <Problem error={revoke.error} />
      {sessions.length === 0 && <NoRows list={list} what="sessions">Nobody is signed in.</NoRows>}
      <ul className="rowlist">
        {sessions.map((each) => (
          <li key={each.id}>
            <b><Words>{each.principal}</Words></b>
            <span className="soft small">signed in <Time at={each.created_at} />, ends <Time at={each.expires_at} /></span>
            <Chip tone={each.id === mine ? "accent" : ""}>{each.id === mine ? "this browser" : each.method}</Chip>
            {mayWrite && (
              <button type="button" className="button small bad" onClick={() => revoke.mutate(each.id)}>
                Sign out
              </button>
            )}
          </li>
        ))}
      </ul>
    </div>
  );
}

function Suggestions() {
  const mayWrite = useMayWrite();
  const queries = useQueryClient();
  const list = useQuery({ queryKey: ["grants", "suggestions"], queryFn: () => data(api.GET("/api/grant-suggestions")) });
  const decide = useMutation({
    mutationFn: (body: { id: string; decision: "accept" | "dismiss" }) => data(api.POST("/api/grant-suggestions", { body: { ...body, reason: "" } })),
    onSuccess: () => queries.invalidateQueries({ queryKey: ["grants"] }),
  });
  if (list.isPending) return <Loading what="suggestions" />;
  if (list.error || !list.data) return <Problem error={list.error} retry={() => void list.refetch()} />;
  if (list.data.suggestions.length === 0) return <NoRows list={list} what="suggestions">No suggestions. Comity suggests a grant after people approved the same kind of call several times.</NoRows>;
  return (
    <div className="list">
      <Problem error={decide.error} />
      {list.data.suggestions.map((each) => (
        <section key={each.id} className="card" aria-label={visible(each.name)}>
          <h2><Words>{each.description}</Words></h2>
          <p className="soft">
            Approved {each.evidence.approved} times by {each.evidence.people.map(visible).join(", ")}. <Words>{each.dry_run.sentence}</Words>
          </p>
          {each.where && <Code label="Condition" value={each.where} />}
          {mayWrite && (
            <div className="bar">
              <button type="button" className="button primary" disabled={decide.isPending} onClick={() => decide.mutate({ id: each.id, decision: "accept" })}>
                Make this grant
              </button>
              <button type="button" className="button" disabled={decide.isPending} onClick={() => decide.mutate({ id: each.id, decision: "dismiss" })}>
                Dismiss
              </button>
            </div>
          )}
        </section>
      ))}
    </div>
  );
}
