import { render, screen } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { describe, expect, it } from "vitest";
import { ApiError } from "../api/client";
import { Chip, Confirm, Problem, Words } from "./parts";

describe("Confirm", () => {
  it("needs the typed word for a dangerous action", async () => {
    let runs = 0;
    let closed = 0;
    render(<Confirm title="Sure?" action="Run" typed="delete_all" onConfirm={async () => void runs++} onClose={() => void closed++} />);
    const user = userEvent.setup();
    const button = screen.getByText("Run");
    expect(button).toHaveProperty("disabled", true);
    await user.type(screen.getByRole("textbox", { hidden: true }), "delete_al");
    await user.keyboard("{Enter}");
    expect(runs).toBe(0);
    await user.type(screen.getByRole("textbox", { hidden: true }), "l");
    await user.click(button);
    expect([runs, closed]).toEqual([1, 1]);
  });
  it("stays open with the refusal when the action fails", async () => {
    render(<Confirm title="Sure?" action="Run" onConfirm={() => Promise.reject(new ApiError("Somebody else answered.", 409))} onClose={() => {}} />);
    await userEvent.setup().click(screen.getByText("Run"));
    expect(screen.getByRole("alert", { hidden: true }).textContent).toContain("Somebody else answered.");
  });
});

describe("untrusted text", () => {
  it("is never read as HTML", () => {
    render(
      <>
        <Words>{"<script>alert(1)</script>"}</Words>
        <Problem error={new ApiError("<b>bold</b>", 400)} />
      </>,
    );
    expect(document.querySelector("script, b")).toBeNull();
  });
});

describe("Chip", () => {
  it("tells a state by words and a shape, not by colour alone", () => {
    render(<Chip tone="bad">error</Chip>);
    expect(screen.getByText("error")).toBeTruthy();
    expect(screen.getByText("■")).toBeTruthy();
  });
});
