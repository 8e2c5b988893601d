# ghostscript.sh: a generated PostScript document with paths, shadings, images and text, drawn to PNG and to PDF and back.
#
# Who may call it: run.py. The PDF holds the time of its making, so what is compared is the PDF drawn again.
#
# program: reach=gs rounds=2 needs=gs:ghostscript input=postscript
# version: gs --version
#
# SPDX-License-Identifier: Apache-2.0
draw() { gs -q -dSAFER -dBATCH -dNOPAUSE -sDEVICE="$1" -r"$2" -dTextAlphaBits=4 -dGraphicsAlphaBits=4 -sOutputFile="$3" "$4"; }
draw png16m 60 page%03d.png "$INPUT/document.ps"
sha256sum page*.png
gs -q -dSAFER -dBATCH -dNOPAUSE -sDEVICE=pdfwrite -sOutputFile=document.pdf "$INPUT/document.ps"
draw pnggray 50 pdf%03d.png document.pdf
sha256sum pdf*.png
gs -q -dSAFER -dBATCH -dNOPAUSE -sDEVICE=txtwrite -sOutputFile=- document.pdf | sha256sum
