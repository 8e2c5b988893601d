"""Generated input of the real programs: the same bytes in every run and on every machine.

Who may call it: run.py. Each generator writes into a directory; `scale` is the amount of work, 10 for a full
run and 2 for a bounded one.

SPDX-License-Identifier: Apache-2.0
"""

import random

WORDS = ("weir water gate stream river bank flood lock pond mill wheel sluice basin channel drain spring brook delta "
         "ebb tide current eddy rapid fall pool reach bend ford bridge ferry").split()


def text(rng, words):
    return " ".join(rng.choice(WORDS) for _ in range(words))


def table(directory, scale):
    """table.csv: rows of id, number, word and text, for sqlite3."""
    rng = random.Random(1)
    with open(directory / "table.csv", "w", encoding="ascii") as file:
        for i in range(20000 * scale):
            file.write(f"{i},{rng.randrange(10**9)},{rng.choice(WORDS)}{rng.randrange(500)},{text(rng, rng.randrange(1, 20))}\n")


def tree(directory, scale):
    """tree/: 200 files per unit of scale in directories of 50, for git, tar and xz."""
    rng = random.Random(2)
    for i in range(200 * scale):
        path = directory / "tree" / f"d{i // 50:03}" / f"file{i:05}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{n} {text(rng, rng.randrange(1, 15))}\n" for n in range(rng.randrange(5, 200))), encoding="ascii")
        path.chmod(0o644)


def lines(directory, scale):
    """lines.txt: lines of different length, many of them equal, for sort."""
    rng = random.Random(3)
    with open(directory / "lines.txt", "w", encoding="ascii") as file:
        for _ in range(100000 * scale):
            file.write(f"{rng.randrange(10**6)} {text(rng, rng.randrange(0, 6))}\n")


def commands(directory, scale):
    """commands.txt: commands for redis, strings to sorted sets, that add, change and delete."""
    rng = random.Random(4)
    with open(directory / "commands.txt", "w", encoding="ascii") as file:
        for i in range(20000 * scale):
            key = rng.randrange(4000)
            file.write([
                f"SET string:{key} {'v' * rng.randrange(1, 3000)}",
                f"APPEND string:{key} {'w' * rng.randrange(1, 500)}",
                f"RPUSH list:{key % 200} {i} {'x' * rng.randrange(1, 200)}",
                f"HSET hash:{key % 300} field{i % 700} {'y' * rng.randrange(1, 100)}",
                f"SADD set:{key % 100} member{rng.randrange(5000)}",
                f"ZADD sorted:{key % 100} {rng.randrange(10**6)} member{rng.randrange(3000)}",
                f"DEL string:{rng.randrange(4000)}",
                f"LPOP list:{key % 200}",
                f"SETRANGE string:{key} {rng.randrange(5000)} patch",
            ][rng.randrange(9)] + "\n")


def postscript(directory, scale):
    """document.ps: pages of text in several fonts, paths, shadings, patterns and images, for ghostscript."""
    rng = random.Random(5)
    fonts = ["Helvetica", "Times-Roman", "Courier-Bold", "Palatino-Italic", "Bookman-Demi", "NewCenturySchlbk-Roman"]
    with open(directory / "document.ps", "w", encoding="ascii") as file:
        file.write("%!PS-Adobe-3.0\n/tile << /PatternType 1 /PaintType 1 /TilingType 1 /BBox [0 0 9 9] /XStep 9 /YStep 9\n"
                   "/PaintProc { pop 0.2 0.5 0.8 setrgbcolor 0 0 5 5 rectfill } >> matrix makepattern def\n"
                   "/triangle { 0.5 0 moveto 1 1 lineto 0 1 lineto closepath } def\n")
        for page in range(scale):
            for _ in range(60):
                x, y, size = rng.randrange(600), rng.randrange(800), rng.randrange(20, 90)
                red, green, blue = (rng.randrange(100) / 100 for _ in range(3))
                file.write(f"gsave {x} {y} translate {rng.randrange(360)} rotate {size} dup scale {red} {green} {blue} setrgbcolor ")
                file.write([
                    "triangle fill",
                    "0.02 setlinewidth [0.1 0.05] 0 setdash 0 0 moveto 1 2 3 -1 1 1 curveto stroke",
                    f"<< /ShadingType 2 /ColorSpace /DeviceRGB /BBox [0 0 1 1] /Coords [0 0 1 1] /Function << /FunctionType 2 "
                    f"/Domain [0 1] /C0 [{red} 0 {blue}] /C1 [1 {green} 0] /N 1.5 >> >> shfill",
                    "<< /ShadingType 3 /ColorSpace /DeviceGray /Coords [0 0 0.1 0.4 0.4 1] /Extend [false true] /BBox [0 0 1 1] "
                    "/Function << /FunctionType 2 /Domain [0 1] /C0 [0] /C1 [1] /N 2 >> >> shfill",
                    "0 0 1 1 rectclip /Pattern setcolorspace tile setcolor 0 0 1 1 rectfill",
                    f"8 8 8 [8 0 0 8 0 0] <{rng.randbytes(64).hex()}> image",
                ][rng.randrange(6)])
                file.write(" grestore\n")
            for line in range(40):
                file.write(f"/{fonts[(page + line) % len(fonts)]} findfont {rng.randrange(7, 15)} scalefont setfont "
                           f"40 {780 - line * 19} moveto ({text(rng, 12)}) show\n")
            file.write("showpage\n")


def smt_pigeons(pigeons):
    """More pigeons than holes, in propositional logic: unsatisfiable, and hard."""
    holes = pigeons - 1
    names = [[f"p{i}_{j}" for j in range(holes)] for i in range(pigeons)]
    lines = [f"(declare-const {name} Bool)" for row in names for name in row]
    lines += [f"(assert (or {' '.join(row)}))" for row in names]
    for j in range(holes):
        lines += [f"(assert (or (not {names[a][j]}) (not {names[b][j]})))" for a in range(pigeons) for b in range(a)]
    return lines + ["(check-sat)"]


def smt_schedule(rng, jobs):
    """Jobs on machines without overlap, the end minimised: integer differences with disjunctions."""
    lengths = [rng.randrange(2, 9) for _ in range(jobs)]
    lines = ["(declare-const end Int)"] + [f"(declare-const s{i} Int)" for i in range(jobs)]
    lines += [f"(assert (and (>= s{i} 0) (<= (+ s{i} {lengths[i]}) end)))" for i in range(jobs)]
    for a in range(jobs):
        lines += [f"(assert (or (<= (+ s{a} {lengths[a]}) s{b}) (<= (+ s{b} {lengths[b]}) s{a})))" for b in range(a) if (a + b) % 3 == 0]
    return lines + ["(minimize end)", "(check-sat)", "(get-value (end))"]


def smt_factors(bits, prime):
    """A prime as a product of two bit vectors: unsatisfiable; a multiplier becomes a circuit."""
    return [f"(declare-const a (_ BitVec {bits}))", f"(declare-const b (_ BitVec {bits}))",
            f"(assert (= (bvmul ((_ zero_extend {bits}) a) ((_ zero_extend {bits}) b)) (_ bv{prime} {2 * bits})))",
            f"(assert (bvugt a (_ bv1 {bits})))", "(assert (bvule a b))", "(check-sat)"]


def smt_arrays(rng, writes):
    """Writes to an array in two orders: equal when the places differ."""
    places = rng.sample(range(10**6), writes)
    lines = ["(declare-const a (Array Int Int))", "(declare-const i Int)"]
    forward = backward = "a"
    for place in places:
        forward = f"(store {forward} (+ i {place}) {place % 97})"
    for place in reversed(places):
        backward = f"(store {backward} (+ i {place}) {place % 97})"
    return lines + [f"(assert (not (= {forward} {backward})))", "(check-sat)"]


def smt_quantified(size):
    """A transitive, irreflexive order with a cycle: instances of quantifiers by matching, which take much memory."""
    lines = ["(declare-sort T 0)", "(declare-fun less (T T) Bool)", "(assert (forall ((x T)) (not (less x x))))",
             "(assert (forall ((x T) (y T) (z T)) (=> (and (less x y) (less y z)) (less x z))))"]
    lines += [f"(declare-const c{i} T)" for i in range(size)]
    lines += [f"(assert (less c{i} c{(i + 1) % size}))" for i in range(size)]
    return lines + ["(check-sat)"]


def smt_wide(rng, terms):
    """A system of sparse linear equations over the reals with one solution: large terms, many numbers."""
    values = [rng.randrange(-50, 50) for _ in range(terms)]
    lines = [f"(declare-const x{i} Real)" for i in range(terms)]
    for i in range(terms):
        chosen = rng.sample(range(terms), 4) + [i]
        factors = [rng.randrange(1, 9) for _ in chosen[:-1]] + [97]
        total = sum(f * values[j] for f, j in zip(factors, chosen))
        summands = " ".join(f"(* {f} x{j})" for f, j in zip(factors, chosen))
        lines.append(f"(assert (= (+ {summands}) {total if total >= 0 else f'(- {-total})'}))")
    return lines + ["(check-sat)"] + [f"(get-value (x{i}))" for i in range(0, terms, 10)]


def smt(directory, scale):
    """smt/*.smt2: problems of several logics, for z3."""
    rng = random.Random(6)
    (directory / "smt").mkdir(exist_ok=True)
    full = scale >= 10
    for name, lines in {
        "pigeons": smt_pigeons(10 if full else 9),
        "schedule": smt_schedule(rng, 18 if full else 14),
        "factors": smt_factors(*((16, 15485863) if full else (14, 1048573))),
        "arrays": smt_arrays(rng, 100 if full else 40),
        "quantified": smt_quantified(140 if full else 60),
        "wide": smt_wide(rng, 80 if full else 50),
    }.items():
        (directory / "smt" / f"{name}.smt2").write_text("\n".join(lines) + "\n", encoding="ascii")


def history(directory, scale):
    """history.fi: a repository for git fast-import: hundreds of commits per unit of scale, and some large files."""
    rng = random.Random(7)
    files = [[f"{n} {text(rng, 8)}" for n in range(rng.randrange(20, 300))] for _ in range(120)]
    with open(directory / "history.fi", "wb") as out:
        def data(content):
            out.write(b"data %d\n%s\n" % (len(content), content))

        for commit in range(300 * scale):
            out.write(b"commit refs/heads/main\ncommitter c <c@example.org> %d +0000\n" % (1700000000 + commit * 60))
            data(f"change {commit}\n\n{text(rng, 20)}\n".encode())
            chosen = range(len(files)) if commit == 0 else sorted(rng.sample(range(len(files)), 3))
            for i in chosen:
                lines = files[i]
                for _ in range(3):
                    lines[rng.randrange(len(lines))] = text(rng, 8)
                lines.insert(rng.randrange(len(lines)), f"new {commit}")
                out.write(b"M 100644 inline directory%d/file%d.txt\n" % (i % 11, i))
                data("\n".join(lines).encode())
            if commit % 100 == 50:
                out.write(b"M 100644 inline large%d.bin\n" % (commit % 3))
                data(rng.randbytes(100000) * (1 + commit % 7) + rng.randbytes(1000 * commit % 500000))
            if commit % 40 == 0:
                out.write(b"reset refs/tags/t%d\nfrom refs/heads/main\n\n" % commit)


GENERATORS = {"table": table, "tree": tree, "lines": lines, "commands": commands, "postscript": postscript, "smt": smt,
              "history": history}
