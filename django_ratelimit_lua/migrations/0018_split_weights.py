from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('django_ratelimit_lua', '0017_client_may_refund'),
    ]

    operations = [
        migrations.AddField(
            model_name='ratelimitrule',
            name='split_weights',
            field=models.CharField(blank=True, db_default='', default='', help_text='For example web-1=3, web-2=1: a process on web-1 has three times the share. Hosts that are not named: 1.', max_length=1000, verbose_name='weights of hosts'),
        ),
    ]
