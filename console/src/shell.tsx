// The frame of all screens: navigation, state of the connection, command palette and shortcuts.
import { Outlet, useRouterState } from "@tanstack/react-router";
import { useQuery } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { api, data } from "./api/client";
import { useLive } from "./api/live";
import { SCREENS, To, useGo } from "./navigate";
import { Palette, ShortcutHelp } from "./palette";
import { SignOutButton, useSession } from "./session";
import { Icon, Mark } from "./ui/icons";
import { Chip, Names, type Tone } from "./ui/parts";
import { areShortcutsOn } from "./ui/shortcuts";

const ON_PHONE = new Set(["/", "/approvals", "/servers", "/audit"]);

function useOpenApprovals() {
  return useQuery({
    queryKey: ["approvals", "count"],
    queryFn: () => data(api.GET("/api/approvals", { params: { query: { limit: 1 } } })),
    select: (page) => page.total ?? page.approvals.length,
  });
}

export function Shell() {
  const here = useRouterState({ select: (state) => state.location.pathname.replace(/^\/console/, "") || "/" });
  const session = useSession();
  const waiting = useOpenApprovals().data ?? 0;
  const [open, setOpen] = useState<"palette" | "help" | null>(null);
  const main = useRef<HTMLElement>(null);
  const { connection, setPaused } = useLive();
  const announced = useAnnouncement(waiting);
  useShortcuts(setOpen, () => setPaused(connection !== "paused"));

  const screen = SCREENS.findLast((each) => here === each.path || (each.path !== "/" && here.startsWith(`${each.path}/`)));
  useEffect(() => {
    const count = waiting ? `(${waiting}) ` : "";
    document.title = `${count}${screen?.name ?? "Console"} · Comity`;
  }, [screen, waiting]);
  // A new screen begins at its heading for readers that cannot see it change.
  const isFirst = useRef(true);
  useEffect(() => {
    if (isFirst.current) isFirst.current = false;
    else main.current?.focus({ preventScroll: true });
  }, [screen?.path]);

  return (
    <div className="shell">
      <a className="skip" href="#main">
        Skip to content
      </a>
      <aside className="side">
        <To path="/" className="brand">
          <Mark /> Comity
        </To>
        <nav aria-label="Screens" className="nav">
          {SCREENS.map((each) => (
            <NavLink key={each.path} {...each} isHere={each === screen} count={each.path === "/approvals" ? waiting : 0} />
          ))}
          <NavLink path="/more" name="More" icon="more" isHere={here === "/more"} count={0} className="more" />
        </nav>
        <div className="foot">
          <ConnectionState />
          <button type="button" className="button quiet" onClick={() => setOpen("palette")}>
            Go to… <kbd>Ctrl K</kbd>
          </button>
          {session.data && (
            <div className="small soft anywhere">
              Signed in as <b><Names>{session.data.label || session.data.principal}</Names></b>
              <br />
              <SignOutButton className="button quiet small" />
            </div>
          )}
        </div>
      </aside>
      <main id="main" ref={main} tabIndex={-1} className="main">
        <div className="topbar">
          <To path="/" className="brand">
            <Mark /> Comity
          </To>
          <ConnectionState />
        </div>
        <Outlet />
      </main>
      <div className="hidden-visually" role="status" aria-live="polite">
        {announced}
      </div>
      {open === "palette" && <Palette onClose={() => setOpen(null)} onHelp={() => setOpen("help")} />}
      {open === "help" && <ShortcutHelp onClose={() => setOpen(null)} />}
    </div>
  );
}

function NavLink({ path, name, icon, isHere, count, className = "" }: { path: string; name: string; icon: string; isHere: boolean; count: number; className?: string }) {
  const go = useGo();
  const far = ON_PHONE.has(path) || className ? className : "far";
  return (
    <a
      href={`/console${path}`}
      className={far}
      aria-current={isHere ? "page" : undefined}
      onClick={(event) => {
        if (event.metaKey || event.ctrlKey || event.shiftKey) return;
        event.preventDefault();
        go(path);
      }}
    >
      <Icon name={icon} />
      <span>{name}</span>
      {count > 0 && (
        <span className="count">
          {count > 999 ? "999+" : count}
          <span className="hidden-visually"> waiting</span>
        </span>
      )}
    </a>
  );
}

const CONNECTIONS: Record<string, [Tone, string]> = {
  connecting: ["", "connecting"],
  live: ["good", "live"],
  lost: ["bad", "connection lost"],
  paused: ["warn", "paused"],
};

function ConnectionState() {
  const { connection, setPaused } = useLive();
  const [tone, words] = CONNECTIONS[connection]!;
  return (
    <div className="bar">
      <Chip tone={tone}>{words}</Chip>
      <button type="button" className="button quiet small" onClick={() => setPaused(connection !== "paused")}>
        {connection === "paused" ? "Resume" : "Pause"}
      </button>
    </div>
  );
}

/** Say new approval requests to a screen reader, at most every five seconds. */
function useAnnouncement(waiting: number): string {
  const [text, setText] = useState("");
  const before = useRef(waiting);
  useEffect(() => {
    if (waiting === before.current) return;
    const timer = window.setTimeout(() => {
      setText(waiting > before.current ? `${waiting} approval requests wait for an answer.` : "");
      before.current = waiting;
    }, 5_000);
    return () => window.clearTimeout(timer);
  }, [waiting]);
  return text;
}

function useShortcuts(open: (what: "palette" | "help") => void, pause: () => void) {
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        open("palette");
        return;
      }
      const target = event.target as HTMLElement;
      const isTyping = target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || document.querySelector("dialog[open]");
      if (isTyping || event.altKey || event.ctrlKey || event.metaKey || !areShortcutsOn()) return;
      if (event.key === "/") {
        const filter = document.querySelector<HTMLInputElement>("[data-filter]");
        if (!filter) return;
        event.preventDefault();
        filter.focus();
      } else if (event.key === "?") {
        open("help");
      } else if (event.key === "p") {
        pause();
      }
    };
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  }, [open, pause]);
}
