# imagemagick.sh: generated pictures through ImageMagick's operators with two threads; checksums of the pixels.
#
# Who may call it: run.py.
#
# program: reach=convert-im6.q16 rounds=2 needs=convert-im6.q16:imagemagick
# version: convert-im6.q16 --version
#
# SPDX-License-Identifier: Apache-2.0
picture() { convert-im6.q16 -limit thread 2 -seed 7 "$@"; }
side=$((150 * SCALE))
picture -size ${side}x$side plasma:red-blue one.miff
picture -size ${side}x$side radial-gradient:white-black \( one.miff -resize 50% -rotate 30 \) -gravity center -composite two.miff
picture one.miff two.miff -compose Multiply -composite -blur 0x3 -unsharp 0x2 three.miff
picture three.miff -colors 64 -dither FloydSteinberg four.png
picture three.miff -quality 80 -strip five.jpg
picture five.jpg -distort Arc 60 -morphology Close Disk:2 -sharpen 0x1 six.miff
picture one.miff two.miff three.miff four.png six.miff -resize 200x200! -append seven.miff
for file in one.miff two.miff three.miff four.png five.jpg six.miff seven.miff; do
    echo "$file $(picture $file -depth 8 rgb:- | sha256sum)"
done
