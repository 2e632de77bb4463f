// The screens, links and filters of the console, with plain texts as parameters.
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import type { ReactNode } from "react";

export type Search = Record<string, string | undefined>;

export const SCREENS = [
  { path: "/", name: "Overview", icon: "overview" },
  { path: "/approvals", name: "Approvals", icon: "approvals" },
  { path: "/servers", name: "Servers", icon: "servers" },
  { path: "/tools", name: "Tools", icon: "tools" },
  { path: "/views", name: "Views", icon: "views" },
  { path: "/access", name: "Access", icon: "access" },
  { path: "/accounts", name: "Accounts", icon: "accounts" },
  { path: "/audit", name: "Audit", icon: "audit" },
  { path: "/topics", name: "Topics", icon: "topics" },
  { path: "/live", name: "Live", icon: "live" },
  { path: "/settings", name: "Settings", icon: "settings" },
] as const;

const segment = encodeURIComponent;

/** The addresses of single things. */
export const at = {
  approval: (id: string) => `/approvals/${segment(id)}`,
  server: (id: string) => `/servers/${segment(id)}`,
  tool: (name: string) => `/tools/${segment(name)}`,
  view: (name: string) => `/views/${segment(name)}`,
  trace: (id: string) => `/audit/${segment(id)}`,
  topic: (id: string) => `/topics/${segment(id)}`,
  /** A page of the gateway, outside of the console. */
  signIn: (request: string) => `/accounts/connect/${segment(request)}`,
};

export function To({ path, search, children, className, title }: { path: string; search?: Search; children: ReactNode; className?: string; title?: string }) {
  return (
    <Link to={path as never} search={(search ?? {}) as never} className={className} title={title}>
      {children}
    </Link>
  );
}

export function useGo() {
  const navigate = useNavigate();
  return (path: string, search: Search = {}) => void navigate({ to: path as never, search: search as never });
}

/** The filters of a screen, which live in its address. */
export function useFilters(): [Search, (changes: Search) => void] {
  const search = useSearch({ strict: false }) as Search;
  const navigate = useNavigate();
  const change = (changes: Search) =>
    void navigate({ search: ((before: Search) => ({ ...before, ...changes })) as never, replace: true } as never);
  return [search, change];
}
