// Accounts at servers that demand a sign-in: who has one, who needs one, and how one ends.
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api, data, type Schemas } from "../api/client";
import { at, useFilters } from "../navigate";
import { useSession } from "../session";
import { VirtualList, type Column } from "../ui/list";
import { Chip, Confirm, Dialog, Facts, NoRows, Problem, SearchBox, Time, Words, type Tone } from "../ui/parts";
import { visible } from "../ui/text";

type Account = Schemas["AccountView"];
type Server = Schemas["AccountServerView"];
type Approval = Schemas["ApprovalView"];

const STATES: Record<string, [Tone, string]> = { connected: ["good", "connected"], sign_in_needed: ["warn", "sign-in needed"] };

function AccountState({ state }: { state: string }) {
  const [tone, words] = STATES[state] ?? ["", state];
  return <Chip tone={tone}>{words}</Chip>;
}

const ownerOf = (account: Pick<Account, "owner">) => account.owner || "shared";

const expiryOf = (account: Account) => (account.expires_at ? <Time at={account.expires_at} /> : <span className="soft">not known</span>);

const COLUMNS: Column<Account>[] = [
  { name: "Server", width: "minmax(4rem, 1fr)", cell: (row) => <b><Words>{row.server}</Words></b>, onPhone: true },
  { name: "Owner", width: "minmax(5rem, 1.5fr)", cell: (row) => (row.owner ? <Words>{row.owner}</Words> : <span className="soft">shared</span>), onPhone: true },
  { name: "State", width: "8.75rem", cell: (row) => <AccountState state={row.state} />, onPhone: true },
  { name: "Expires", width: "minmax(12rem, 1fr)", cell: (row) => (row.is_refreshable ? <span className="soft">renewed when needed</span> : expiryOf(row)) },
  { name: "Scopes", width: "minmax(8rem, 2fr)", cell: (row) => <span className="mono soft">{visible(row.scopes.join(" "))}</span> },
];

/** A link to the page where the account is connected. That page says when it can be closed. */
function SignInLink({ path, children, label, className }: { path: string; children: string; label: string; className: string }) {
  return (
    <a className={className} href={path} target="_blank" rel="noopener" aria-label={label}>
      {children}
    </a>
  );
}

export function Accounts() {
  const [filters, change] = useFilters();
  const [open, setOpen] = useState<Account | null>(null);
  const [doomed, setDoomed] = useState<Account | null>(null);
  const [unrevoked, setUnrevoked] = useState("");
  const queries = useQueryClient();
  const list = useQuery({ queryKey: ["accounts", "list"], queryFn: () => data(api.GET("/api/accounts")) });
  const { accounts = [], servers = [] } = list.data ?? {};
  const wanted = (filters.search ?? "").toLowerCase();
  const rows = accounts.filter((each) => `${each.server} ${ownerOf(each)} ${each.issuer}`.toLowerCase().includes(wanted));
  const disconnect = async (account: Account) => {
    const ended = await data(api.POST("/api/accounts/{account}/disconnect", { params: { path: { account: account.id } }, body: {} }));
    setUnrevoked(ended.revoked ? "" : ended.server);
    await queries.invalidateQueries({ queryKey: ["accounts"] });
  };
  return (
    <div className="screen">
      <div className="head">
        <h1>Accounts</h1>
        <div className="bar">
          <SearchBox label="Filter accounts" value={filters.search ?? ""} onChange={(search) => change({ search })} />
        </div>
      </div>
      <Problem error={list.error} retry={() => void list.refetch()} />
      {unrevoked && (
        <p className="note warn" role="status">
          The account at {visible(unrevoked)} is disconnected. The provider did not confirm that the tokens ended. Check it there.
        </p>
      )}
      <WaitingSignIns servers={servers} />
      <ServersToConnect servers={servers.filter((each) => each.may_connect && !each.connected)} />
      {rows.length === 0 ? (
        <NoRows list={list} what="accounts">
          {wanted ? (
            "No account fits this filter."
          ) : (
            <>
              <b>No account is connected.</b>
              <span>A server that uses OAuth appears here as soon as it demands a sign-in.</span>
            </>
          )}
        </NoRows>
      ) : (
        <VirtualList label="Accounts" rows={rows} columns={COLUMNS} keyOf={(row) => row.id} onOpen={setOpen} total={accounts.length} />
      )}
      {open && (
        <AccountDialog
          account={accounts.find((each) => each.id === open.id) ?? open}
          servers={servers}
          onClose={() => setOpen(null)}
          onDisconnect={() => {
            setOpen(null);
            setDoomed(open);
          }}
        />
      )}
      {doomed && (
        <Confirm title={`Disconnect the account at ${visible(doomed.server)}?`} action="Disconnect" tone="bad full" onClose={() => setDoomed(null)} onConfirm={() => disconnect(doomed)}>
          <p>
            {doomed.owner ? <>The account of <Words>{doomed.owner}</Words></> : "The shared account"} ends, and Comity revokes its tokens. Calls that need it wait for another sign-in.
          </p>
        </Confirm>
      )}
    </div>
  );
}

function AccountDialog({ account, servers, onClose, onDisconnect }: { account: Account; servers: Server[]; onClose: () => void; onDisconnect: () => void }) {
  const me = useSession().data?.principal;
  const again = servers.find((each) => each.server === account.server && each.may_connect && account.owner === (each.mode === "shared" ? "" : me));
  return (
    <Dialog title={`Account at ${visible(account.server)}`} onClose={onClose}>
      <Facts
        rows={[
          ["Owner", <Words key="owner">{ownerOf(account)}</Words>],
          ["State", <AccountState key="state" state={account.state} />],
          ["Provider", <Words key="issuer">{account.issuer}</Words>],
          ["Scopes", account.scopes.length > 0 && <span className="mono">{visible(account.scopes.join(" "))}</span>],
          ["Missing scopes", account.missing_scopes.length > 0 && <span className="mono">{visible(account.missing_scopes.join(" "))}</span>],
          ["Connected", <Time key="at" at={account.connected_at} />],
          ["Connected by", account.connected_by !== account.owner && <Words>{account.connected_by}</Words>],
          ["Token expires", <span key="expiry">{expiryOf(account)}{account.is_refreshable && ", and is renewed when a call needs it"}</span>],
        ]}
      />
      <div className="bar">
        {account.may_disconnect && (
          <button type="button" className="button bad" onClick={onDisconnect}>
            Disconnect
          </button>
        )}
        {again && (
          <SignInLink path={again.path} className="button" label={`Sign in again at ${visible(account.server)}`}>
            Sign in again
          </SignInLink>
        )}
        <button type="button" className="button" onClick={onClose} data-focus>
          Close
        </button>
      </div>
    </Dialog>
  );
}

/** Servers where this person has no account yet. */
function ServersToConnect({ servers }: { servers: Server[] }) {
  if (servers.length === 0) return null;
  return (
    <section className="card" aria-label="Servers without your account">
      <h2>Connect an account</h2>
      <ul className="rowlist">
        {servers.map((each) => (
          <li key={each.server}>
            <b><Words>{each.server}</Words></b>
            <span className="soft">{each.mode === "shared" ? "One account for all callers." : "Your calls use your own account."}</span>
            <SignInLink path={each.path} className="button primary small" label={`Connect ${visible(each.server)}`}>
              Connect
            </SignInLink>
          </li>
        ))}
      </ul>
    </section>
  );
}

/** Calls that wait until the owner of an account has signed in. */
function WaitingSignIns({ servers }: { servers: Server[] }) {
  const me = useSession().data?.principal;
  const list = useQuery({ queryKey: ["approvals", "sign-ins"], queryFn: () => data(api.GET("/api/approvals", { params: { query: { kind: "sign_in", order: "oldest" } } })) });
  const rows = list.data?.approvals ?? [];
  const mayConnect = ({ about, server }: Approval) => (about.owner ? about.owner === me : servers.some((each) => each.server === server && each.may_connect));
  if (rows.length === 0) return <Problem error={list.error} />;
  return (
    <section className="card" aria-label="Calls that wait for a sign-in">
      <h2>Calls that wait for a sign-in</h2>
      <ul className="rowlist">
        {rows.map((each) => (
          <li key={each.id}>
            <Words>{each.message}</Words>
            <span className="soft small">
              <Time at={each.created_at} />
              {Array.isArray(each.about.scopes) && <>, needs <span className="mono">{visible(each.about.scopes.join(" "))}</span></>}
            </span>
            {mayConnect(each) ? (
              <SignInLink path={at.signIn(each.id)} className="button primary small" label={`Sign in to ${visible(each.server)}`}>
                Sign in
              </SignInLink>
            ) : (
              <Chip tone="warn">waits for {each.about.owner ? "its owner" : "an administrator"}</Chip>
            )}
          </li>
        ))}
      </ul>
    </section>
  );
}
