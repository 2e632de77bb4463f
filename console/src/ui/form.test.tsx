import { render, screen } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { useState } from "react";
import { describe, expect, it } from "vitest";
import { defaults, SchemaFields, type Schema, type Values } from "./form";

const SCHEMA: Schema = {
  type: "object",
  required: ["path", "times"],
  properties: {
    path: { type: "string", title: "Path", description: "Where it is" },
    times: { type: "integer", minimum: 1 },
    mode: { type: "string", enum: ["read", "write"], default: "read" },
    force: { type: "boolean" },
    tags: { type: "array", items: { type: "string" } },
    owner: { type: "object", properties: { name: { type: "string" } } },
  },
};

function Form({ onValues }: { onValues: (values: Values) => void }) {
  const [values, setValues] = useState<Values>(() => defaults(SCHEMA));
  return <SchemaFields schema={SCHEMA} values={values} onChange={(next) => (setValues(next), onValues(next))} />;
}

describe("SchemaFields", () => {
  it("makes values of the types that the schema names", async () => {
    let latest: Values = {};
    render(<Form onValues={(values) => (latest = values)} />);
    const user = userEvent.setup();
    await user.type(screen.getByLabelText(/Path/), "/tmp");
    await user.type(screen.getByLabelText(/times/), "3");
    await user.click(screen.getByLabelText("force"));
    await user.type(screen.getByLabelText(/name/), "ops");
    await user.click(screen.getByLabelText(/tags/));
    await user.paste('["a"]');
    expect(latest).toEqual({ path: "/tmp", times: 3, mode: "read", force: true, tags: ["a"], owner: { name: "ops" } });
  });
  it("leaves out what is emptied, and says that JSON is not valid yet", async () => {
    let latest: Values = {};
    render(<Form onValues={(values) => (latest = values)} />);
    const user = userEvent.setup();
    await user.type(screen.getByLabelText(/Path/), "x");
    await user.clear(screen.getByLabelText(/Path/));
    expect("path" in latest).toBe(false);
    await user.click(screen.getByLabelText(/tags/));
    await user.paste("[1,");
    expect(screen.getByRole("alert").textContent).toContain("not valid JSON");
  });
  it("gives each field its description", () => {
    render(<Form onValues={() => {}} />);
    const field = screen.getByLabelText(/Path/);
    expect(document.getElementById(field.getAttribute("aria-describedby")!)!.textContent).toBe("Where it is");
  });
});
