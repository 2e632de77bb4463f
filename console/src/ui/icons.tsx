// Line icons of the navigation, drawn here so that no icon package is needed.
const PATHS: Record<string, string> = {
  overview: "M4 13h6V4H4zM14 20h6v-9h-6zM4 20h6v-4H4zM14 8h6V4h-6z",
  approvals: "M9 12l2 2 4-5M12 3l8 3v6c0 5-3.4 8-8 9-4.6-1-8-4-8-9V6z",
  servers: "M4 5h16v5H4zM4 14h16v5H4zM8 7.5h.01M8 16.5h.01",
  tools: "M14.5 6.5a4 4 0 0 0-5 5L4 17l3 3 5.5-5.5a4 4 0 0 0 5-5L15 12l-3-3z",
  views: "M4 5h16M4 12h10M4 19h6M17 15a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5z",
  access: "M8 11a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM2 21c0-4 2.5-6 6-6M15 14a3 3 0 1 0 3 3M17 15l4-4M19 13l2 2",
  accounts: "M10 13a4 4 0 0 0 6 .5l3-3a4 4 0 0 0-5.7-5.7L12 6M14 11a4 4 0 0 0-6-.5l-3 3a4 4 0 0 0 5.7 5.7L12 18",
  audit: "M6 3h9l4 4v14H6zM9 12h7M9 16h7M9 8h3",
  topics: "M4 5h16v11H9l-5 4zM8 9h8M8 12h5",
  live: "M3 12h4l3-8 4 16 3-8h4",
  settings: "M12 15a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM12 3v3M12 18v3M3 12h3M18 12h3M5.6 5.6l2.2 2.2M16.2 16.2l2.2 2.2M18.4 5.6l-2.2 2.2M7.8 16.2l-2.2 2.2",
  more: "M5 12h.01M12 12h.01M19 12h.01",
};

export function Icon({ name }: { name: string }) {
  return (
    <svg viewBox="0 0 24 24" fill="none" stroke="currentColor" strokeWidth="1.75" strokeLinecap="round" strokeLinejoin="round" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}

export function Mark() {
  return (
    <svg viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="7" fill="var(--accent)" />
      <path d="M22 11a8 8 0 1 0 0 10M16 16h10" fill="none" stroke="var(--accent-ink)" strokeWidth="3" strokeLinecap="round" />
    </svg>
  );
}
